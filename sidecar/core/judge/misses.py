"""Why a wave did not make, or did not show, the batch that its gait promises."""

from enum import StrEnum


class Miss(StrEnum):
    """Why a wave did not show its batch; the words are for the operator."""

    UNFINISHED = "not every request got its tokens"
    NO_OVERLAP = (
        "the first ended before the last had begun, as where --max-num-seqs or the KV cache is "
        "smaller than the wave"
    )
    PLUG_GONE = "the plug had ended before the last request was sent"
    PLUG_SHARED = "requests came with the plug's own step"
    SPLIT = "the requests did not share a step"
    LEAD_NOT_ALONE = "the first request did not run alone"
    REST_LATE = "the rest was sent after the first request's token"
    REST_SPLIT = "the rest was not packed as one queue would be"
    ARRIVED_EARLY = "the other request was sent before all of them decoded"
    OUTRUN = "the first ended before the arriving prompt was computed"
    B_UNKNOWN = (
        "the rest took several steps, and whether it had to needs max_num_batched_tokens: "
        "say it under engine: in the shapes file"
    )
