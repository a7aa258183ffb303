"""What the image adds to its base, and of which packages that is made.

python -m benchmarks.image [IMAGE [BASE]]

It needs a Docker Engine that has both (WARMUP_TEST_DOCKER as for the tests); nothing is built.
"""

import json
import sys
from dataclasses import dataclass

from tests.containers.docker import Docker

IMAGE, BASE = "vllm-warmup-sidecar:0.1.0", "python:3.13-slim"
LIMIT_BYTES = 60 * 10**6
"""What the image may add to its base."""

WALK = """
import json, os, sys, sysconfig
from importlib.metadata import packages_distributions

owners = {top: sorted(set(names)) for top, names in packages_distributions().items()}
site = sysconfig.get_path("purelib")
cache = sys.pycache_prefix
sizes = {}
for folder, _, files in os.walk("/opt/warmup"):
    for file in files:
        path = os.path.join(folder, file)
        size = 0 if os.path.islink(path) else os.path.getsize(path)
        place = path.removeprefix(cache) if path.startswith(cache) else path
        inside = place.startswith(site)
        top = place[len(site) + 1:].split("/")[0] if inside else ""
        name = top.split("-")[0].split(".")[0]
        if not inside:
            owner = "standard library" if path.startswith(cache) else "the environment itself"
        elif top.endswith(".dist-info"):
            owner = name.replace("_", "-").lower()
        else:
            owner = owners.get(name, [name])[0].replace("_", "-").lower()
        kind = "bytecode" if path.startswith(cache) else "native" if ".so" in file else "source"
        sizes.setdefault(owner, {}).setdefault(kind, 0)
        sizes[owner][kind] += size
print(json.dumps(sizes))
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One package in the image, in bytes."""

    name: str
    source: int
    native: int
    bytecode: int

    @property
    def total(self) -> int:
        return self.source + self.native + self.bytecode


def added_bytes(image: str, base: str = BASE) -> int:
    """The image without its base, as the Engine counts it."""
    shown = Docker()("image", "inspect", "--format", "{{.Size}}", image, base)
    size, of_base = map(int, shown.split())
    return size - of_base


def parts_of(image: str) -> list[Part]:
    """What lies in the image's own folder, the largest first."""
    printed = Docker()("run", "--rm", "--entrypoint", "python", image, "-c", WALK)
    parts = [
        Part(name, sizes.get("source", 0), sizes.get("native", 0), sizes.get("bytecode", 0))
        for name, sizes in json.loads(printed).items()
    ]
    return sorted(parts, key=lambda part: -part.total)


def main(image: str = IMAGE, base: str = BASE) -> None:
    print(f"{image} adds {added_bytes(image, base) / 1e6:.1f} MB to {base}, in MB:\n")
    print("| package | source | native | bytecode | all |")
    print("|---|---|---|---|---|")
    parts = parts_of(image)
    small = [part for part in parts if part.total < 0.25e6]
    others = Part(
        f"{len(small)} smaller ones",
        *(sum(getattr(part, kind) for part in small) for kind in ("source", "native", "bytecode")),
    )
    for part in (*(part for part in parts if part not in small), others):
        figures = (part.source, part.native, part.bytecode, part.total)
        print(f"| {part.name} | " + " | ".join(f"{figure / 1e6:.1f}" for figure in figures) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])
