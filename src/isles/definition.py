"""What a run is: the facts that decide its bits, written down so that a later process can go on with it.

Nothing here depends on where or by how many processes the run is worked out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from isles import adapt, agreement, ascent, checks, devices, kernels, keys, references, samplers
from isles.checks import FolderError, SettingsError, UnknownProblemError
from isles.fingerprints import fingerprint, fingerprint_function
from isles.layout import Params
from isles.likelihoods import known
from isles.problem import Problem
from isles.samplers.block import Output, Plan, Sampler
from isles.saving import describe
from isles.store import codec
from isles.store.folder import RunFolder, Saved
from isles.store.trees import describe_layout

FORMAT = 1
# what of JAX's configuration decides numbers
NUMBERS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
)
SETTINGS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        samplers.SMC, samplers.MCMC, samplers.MPMCMC, samplers.AIS, Plan,
        adapt.Decorrelate, adapt.WhileFalling, ascent.Optimised,
        kernels.HMC, kernels.MALA, kernels.MH, kernels.PCN, kernels.SmMALA, kernels.DE, kernels.Stretch,
    )
}  # fmt: skip
BLOCK_BYTES = 1 << 28  # of particle states in one block
BLOCK_WORK = 1 << 22  # coordinates × rows of data × particles beyond which a block is one island
BIT_VERSIONS = ("jax", "jaxlib", "optax")  # others of these may change bits; the last of climbs only
MAX_ISLANDS = 1 << 32  # their numbers go into random keys as 32 bits
STRANGE = "it was not written by isles; give another folder"
REMEDY = "resume with what the run was begun with, or give another folder"


@dataclasses.dataclass(frozen=True)
class Definition:
    """All that decides the bits of a run."""

    problem: Problem
    sampler: Sampler
    output: Output
    seed: int
    islands: int
    islands_per_block: int
    threads: int | None  # None: of the caller's own process
    reference: str | None = None  # where the problem can be imported from
    mesh: Mesh | None = None  # devices of this process
    numbers: tuple[int, ...] | None = None  # of the islands; None: 0, 1, 2, ...

    @property
    def blocks(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The islands of each block."""
        return split(self.islands, self.islands_per_block, self.numbers)

    def write(self) -> Saved:
        """As JSON, with the tensors that JSON does not suit."""
        problem, layout = self.problem, self.problem.layout
        tensors: dict[str, np.ndarray[Any, Any]] = {}
        facts: dict[str, Any] = {
            "format": FORMAT,
            "settings": {
                "sampler": codec.encode(self.sampler, tensors, SETTINGS, "sampler"),
                "sampler_text": repr(self.sampler),
                "islands": self.islands,
                "seed": self.seed,
                "islands_per_block": self.islands_per_block,
                "chunk_rows": problem.chunk_rows,
                "threads": self.threads,
                "mesh": None if self.mesh is None else dict(self.mesh.shape),
                "keep": self.output.keep,
                "collect": {
                    name: fingerprint_function(function, layout.struct())
                    for name, function in self.output.collect.items()
                },
            },
            "layout": describe_layout(layout),
            "likelihood": describe(known(problem)),
            "problem": {
                "reference": self.reference,
                "parameters": {
                    name: [*shape, dtype]
                    for name, shape, dtype in zip(layout.names, layout.shapes, layout.dtypes, strict=True)
                },
                "rows": problem.rows,
                "data": fingerprint(problem.data),
                "prior": fingerprint_function(
                    lambda key: (draw := problem.prior.draw(key), problem.prior.log_density(draw)),
                    jax.eval_shape(jax.random.key, 0),
                ),
                "likelihood": fingerprint_function(
                    problem.log_likelihood, *problem.arguments(min(problem.chunk_rows, problem.rows))
                ),
            },
            "numbers": {name: _plain(getattr(jax.config, name, None)) for name in NUMBERS},
            "versions": {
                "isles": version("isles"),
                "jax": version("jax"),
                "jaxlib": version("jaxlib"),
                "numpy": np.__version__,
                "python": platform.python_version(),
                **({"optax": version("optax")} if getattr(self.sampler, "way", None) is not None else {}),
            },
            "machine": {"processor": processor(), "system": platform.platform(), "devices": _devices()},
        }
        if self.numbers is not None:
            facts["settings"]["island_numbers"] = list(self.numbers)
        return Saved(tensors, facts)


def split(islands: int, size: int, numbers: Sequence[int] | None = None) -> tuple[np.ndarray[Any, Any], ...]:
    """The islands of each block."""
    chosen = np.arange(islands) if numbers is None else np.asarray(numbers)
    return tuple(chosen[first : first + size] for first in range(0, islands, size))


def define(
    problem: Problem | str,
    sampler: Sampler,
    threads: int | None,
    *,
    islands: int | Sequence[int],
    seed: int,
    islands_per_block: int | None,
    chunk_rows: int | None,
    output: Output,
    mesh: Mesh | None = None,
) -> Definition:
    """The run that these settings mean, each of them checked."""
    reference = problem if isinstance(problem, str) else None
    if isinstance(problem, str):
        problem = import_problem(problem)
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={problem!r} must be an isles.Problem; build one with isles.Problem(prior, ...)")
    if isinstance(sampler, type) or not hasattr(sampler, "advance"):
        raise TypeError(f"sampler={sampler!r} must be a sampler such as isles.SMC(...)")
    named = isinstance(islands, Sequence) and not isinstance(islands, str)
    numbers = check_numbers(islands) if named else None  # type: ignore[arg-type]
    islands = checks.count("islands", islands if numbers is None else len(numbers))
    keys.check_seed(seed)
    if chunk_rows is not None:
        problem = problem.with_chunk_rows(chunk_rows)
    try:
        sampler.check(problem, output)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    check_memory(problem, sampler)
    if islands_per_block is None:
        islands_per_block = default_islands_per_block(problem, sampler, islands)
    size = min(checks.count("islands_per_block", islands_per_block), islands)
    together = size * sampler.width
    if mesh is not None:
        mesh = devices.check(mesh, sampler.width)
        together //= mesh.shape[devices.PARTICLES]  # on one device
    problem = problem.for_particles(together)
    return Definition(problem, sampler, output, seed, islands, size, threads, reference, mesh, numbers)


def reopen(
    folder: str | os.PathLike[str],
    problem: Problem | str | None = None,
    *,
    sampler: Sampler | None = None,
    collect: Mapping[str, Callable[[Params], Any]] | None = None,
    mesh: Mesh | None = None,
) -> Definition:
    """The definition of the run in a folder, with its problem and sampler made anew."""
    saved = RunFolder(folder).definition()
    check_format(saved)
    sampler = sampler or read_sampler(saved)
    if sampler is None:
        raise ValueError(
            f"the run uses a sampler or kernel of your own, {saved.facts['settings'].get('sampler_text')}; "
            f"pass it as sampler="
        )
    settings, reference = saved.facts["settings"], saved.facts["problem"].get("reference")
    problem = problem if problem is not None else reference
    if problem is None:
        raise ValueError("a run folder holds no problem; pass problem= as the run was begun with")
    if isinstance(problem, str):
        reference, problem = problem, import_problem(problem)
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={problem!r} must be an isles.Problem, as the run was begun with")
    if set(settings["collect"]) != set(collect or {}):
        raise ValueError(f"the run collects {sorted(settings['collect'])}; pass the same functions as collect=")
    if problem.rows:
        problem = problem.with_chunk_rows(max(settings["chunk_rows"], 1))
    output = check_output(collect, settings["keep"])
    sampler.check(problem, output)
    if mesh is not None:
        mesh = devices.check(mesh, sampler.width)
    definition = Definition(
        problem, sampler, output, settings["seed"], settings["islands"], settings["islands_per_block"],
        settings["threads"], reference, mesh, island_numbers(settings),
    )  # fmt: skip
    check_agreement(saved, definition.write())
    return definition


def read_sampler(saved: Saved) -> Sampler | None:
    """The sampler of a run folder; None if it is of a class that isles does not know."""
    check_format(saved)
    try:
        sampler = codec.decode(saved.facts["settings"]["sampler"], saved.tensors, SETTINGS)
    except codec.ForeignClassError:
        return None
    except KeyError as error:
        raise FolderError(f"run.json lacks {error}: {STRANGE}") from None
    if not isinstance(sampler, (samplers.SMC, samplers.MCMC, samplers.MPMCMC, samplers.AIS)):
        raise FolderError(f"run.json holds a {type(sampler).__name__} where a sampler is due; {REMEDY}")
    return sampler


def check_agreement(found: Saved, wanted: Saved) -> None:
    """Raise, naming the differences, if a folder holds another run than the one that is to be continued."""
    check_format(found)
    differences = agreement.differences(found, wanted)
    for name in BIT_VERSIONS:
        old, new = (saved.facts.get("versions", {}).get(name) for saved in (found, wanted))
        if old != new:
            differences.append(f"{name} was {old} and is {new}, which may change bits: install {name}=={old}")
    if differences:
        raise FolderError(f"the folder holds another run ({REMEDY}): {'; '.join(differences)}")


def check_output(collect: Mapping[str, Callable[[Params], Any]] | None, keep: str) -> Output:
    """What a user wants of the draws, if it makes sense."""
    checks.choice("keep", keep, ["all", "thinned", "none"])
    if collect is not None and not isinstance(collect, Mapping):
        raise TypeError(f'collect={collect!r} must be a dict of functions, as in collect={{"name": function}}')
    output = Output(dict(collect or {}), keep)
    for name, function in output.collect.items():
        if not callable(function):
            raise TypeError(f"collect[{name!r}]={function!r} must be a function of the parameters")
    return output


def check_numbers(numbers: Sequence[int]) -> tuple[int, ...]:
    """Numbers of islands that make sense."""
    found = tuple(checks.count("islands", number, minimum=0) for number in numbers)
    if not found or len(set(found)) < len(found) or max(found) >= MAX_ISLANDS:
        raise ValueError(
            f"islands={numbers!r} must be a number of islands, or different numbers below 2³² that name them, "
            f"as range(8, 16)"
        )
    return found


def island_numbers(settings: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The numbers of a run's islands, where they are not 0, 1, 2, ..."""
    numbers = settings.get("island_numbers")
    return None if numbers is None else check_numbers(numbers)


def check_memory(problem: Problem, sampler: Sampler) -> None:
    """Raise if one island's particles cannot fit into this machine's memory."""
    needed = 4 * problem.dtype.itemsize * sampler.width * problem.dimension
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise MemoryError(
            f"{sampler.width} particles of {problem.dimension} parameters need about {needed / 2**30:.3g} GiB, "
            f"this machine has {memory / 2**30:.3g}; take fewer particles on more islands"
        )


def default_islands_per_block(problem: Problem, sampler: Sampler, islands: int) -> int:
    """One island where an evaluation is long, so that none waits for another; else as many as fit in memory."""
    work = sampler.width * problem.dimension * max(problem.rows, 1)
    if work > BLOCK_WORK:
        return 1
    particle_bytes = 12 * problem.dtype.itemsize * problem.dimension + 2 * problem.evaluation_bytes
    island_bytes = sampler.width * particle_bytes
    return int(np.clip(BLOCK_BYTES // island_bytes, 1, islands))


def import_problem(reference: str) -> Problem:
    """The problem that a reference names (see `references`): a `Problem`, or a function that returns one."""
    found, arguments = references.find(reference)
    try:
        problem = found(**arguments) if callable(found) else found
    except Exception as error:
        if isinstance(error, ValueError) and reference.startswith("isles.builtin:"):
            raise UnknownProblemError(str(error)) from error
        error.add_note(f"raised by problem={reference!r}")
        raise
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={reference!r} gives a {type(problem).__name__}; it must give an isles.Problem")
    return problem


def processor() -> str:
    """The CPU model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def check_format(saved: Saved) -> None:
    """Raise if a definition is of another version of isles, or not of isles at all."""
    found = saved.facts.get("format")
    if found != FORMAT:
        raise FolderError(
            f"the run folder has format {found!r}, this version of isles reads {FORMAT}; "
            f"use the version of isles that began it"
        )
    for section in ("settings", "layout", "problem", "numbers", "versions"):
        if not isinstance(saved.facts.get(section), dict):
            raise FolderError(f"run.json has no {section}: {STRANGE}")
    settings = saved.facts["settings"]
    try:
        islands = checks.count("islands", settings["islands"])
        checks.count("islands_per_block", settings["islands_per_block"])
        checks.count("chunk_rows", settings["chunk_rows"], minimum=0)
        checks.choice("keep", settings["keep"], ["all", "thinned", "none"])
        keys.root(settings["seed"])
        if settings["threads"] is not None:
            checks.count("threads", settings["threads"])
        if islands >= MAX_ISLANDS or not isinstance(settings["collect"], dict):
            raise ValueError(f"islands={islands}, collect={settings['collect']}")
        if len(island_numbers(settings) or range(islands)) != islands:
            raise ValueError(f"islands={islands}, island_numbers={settings['island_numbers']}")
    except (KeyError, TypeError, ValueError) as error:
        raise FolderError(f"run.json has no proper settings ({error!r}): {STRANGE}") from error


def _devices() -> str:
    return ", ".join(sorted({device.device_kind for device in jax.devices()}))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def digest(facts: Mapping[str, Any]) -> str:
    """A short name of a definition, by which its blocks are known."""
    chosen = {name: facts[name] for name in ("settings", "problem", "numbers")}
    # where the problem was imported from may change: a run is what it computes
    chosen["problem"] = {name: fact for name, fact in chosen["problem"].items() if name != "reference"}
    chosen["versions"] = {name: facts["versions"][name] for name in BIT_VERSIONS if name in facts["versions"]}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]
