"""What a vLLM server writes: bytes → lines → events → windows and facts. Pure, no input or output.

source, items   where a log is read, and what a source yields
lines, syslog, docker   bytes of a source → lines, whatever way they were split on the way
head            a line → who wrote it, where, when, and the message proper
parse, reader   a message → an event, or None: what is not matched is not kept
window          the events between the two fences of a wave, and how far their silence proves
facts, start    what the start lines tell of a boot
"""
