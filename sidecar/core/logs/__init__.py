"""What a vLLM server writes: bytes → lines → events → windows and facts. Pure, no input or output.

source, items   where a log is read, and what a source yields
lines, syslog, docker   bytes of a source → lines, whatever way they were split on the way
head            a line → who wrote it, where, when, and the message proper
parse           a message → one of the `events`, or None: what is not matched is not kept;
                compiles and startlines know the wordings of two kinds
reader          the lines of one source, in order, with what only two of them together tell
window          the events between the two fences of a wave, and how far their silence proves
evidence        the windows of all sources together: the log leg of one wave
bootlog, facts  what the start lines tell of a boot
seen            what is told at once, beside the waves
"""
