"""The settings of a run, in one table: options of commands, keys of TOML files, their checks and their help."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isles import checks
from isles.cli.app import UsageError

if TYPE_CHECKING:
    from isles.samplers.block import Sampler

SAMPLERS = {"smc": "SMC", "mcmc": "MCMC", "mpmcmc": "MPMCMC", "ais": "AIS"}  # and their classes
KERNELS = {
    "hmc": "HMC", "pcn": "PCN", "mh": "MH", "mala": "MALA", "smmala": "SmMALA", "stretch": "Stretch", "de": "DE",
}  # fmt: skip
RULES = {"decorrelate": "Decorrelate", "while_falling": "WhileFalling"}  # for the number of mutations
ENGINES = ["local", "serial", "ray"]
Check = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Setting:
    """One setting."""

    kind: type
    check: Check  # raises on a value that makes no sense; what it returns is used
    help: str
    of: tuple[str, ...] = ()  # samplers and kernels that have it; all runs if empty
    choices: tuple[str, ...] = ()

    @property
    def panel(self) -> str:
        """Where the help shows it."""
        if not self.of:
            return "Run"
        return "Kernel" if set(self.of) & set(KERNELS) else "Sampler"


def choice(help: str, *options: str, of: tuple[str, ...] = ()) -> Setting:
    """A setting that is one of a few words."""
    return Setting(
        str, lambda name, value: checks.choice(name, value, options), f"{help}: {', '.join(options)}.", of, options
    )


def whole(help: str, *, minimum: int = 1, of: tuple[str, ...] = ()) -> Setting:
    """A setting that is a whole number."""
    return Setting(int, partial(checks.count, minimum=minimum), help, of)


def positive(help: str, of: tuple[str, ...] = ()) -> Setting:
    """A setting that is a positive number."""
    return Setting(float, checks.positive, help, of)


def share(help: str, of: tuple[str, ...] = ()) -> Setting:
    """A setting between 0 and 1."""
    return Setting(float, checks.fraction, help, of)


def text(help: str) -> Setting:
    """A setting that is any text."""
    return Setting(str, _text, help)


def flag(help: str, of: tuple[str, ...] = ()) -> Setting:
    """A setting that is true or false."""
    return Setting(bool, _flag, help, of)


def texts(help: str) -> Setting:
    """A setting that may be given several times; a list in a file."""
    return Setting(list[str], _texts, help)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or any(sign in value for sign in "\n\r\0"):
        raise TypeError(f"{name}={value!r} must be a text of one line")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(_text(name, item) for item in (value if isinstance(value, (list, tuple)) else [value]))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be true or false")
    return value


def _schedule(name: str, value: Any) -> tuple[float, ...]:
    """Temperings as a list, or as text with commas."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    try:
        found = tuple(float(item) for item in items)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be numbers with commas between them, as 0.01,0.1,1") from None
    if not all(map(math.isfinite, found)):
        raise ValueError(f"{name}={value!r} must be finite numbers")
    return found


def _widths(name: str, value: Any) -> tuple[int, ...]:
    """Whole numbers as a list, as one number, or as text with commas."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    try:
        numbers = [int(item) if isinstance(item, str) else item for item in items]
    except ValueError:
        raise ValueError(f"{name}={value!r} must be whole numbers with commas between them, as 64,32") from None
    return tuple(checks.count(name, number) for number in numbers)


def _rate(name: str, value: Any) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else checks.positive(name, value)


TEMPERED = ("smc", "ais")
TUNED = ("hmc", "pcn", "mh", "mala", "smmala", "de", "mpmcmc")  # which have a step size
SETTINGS: dict[str, Setting] = {
    "problem": text("Where to import the problem from, as package.module:function, or the name of a data set."),
    "folder": text("Where the run is kept."),
    "islands": whole("P, the number of islands. [default: 1]"),
    "seed": whole("Decides every random number. [default: 0]", minimum=0),
    "islands_per_block": whole("Islands advanced together as one program; by default, by shapes."),
    "chunk_rows": whole("Rows of data evaluated at a time; by default, by shapes."),
    "keep": choice("Which draws are stored", "all", "thinned", "none"),
    "engine": choice("Where blocks run", *ENGINES),
    "workers": whole("Processes of --engine local; by default, one for each CPU."),
    "threads": whole("XLA threads of a block; decides bits. [default: 1]"),
    "retries": whole("How often a block is run again if its worker dies. [default: 2]", minimum=0),
    "checkpoint_seconds": positive("Time between checkpoints inside long stages. [default: 60]"),
    "max_seconds": positive("No block begins after so long."),
    "max_epochs": whole("No block begins once all particles together have had so many."),
    "finish_started": flag("Whether a budget lets islands finish that have begun. [default: yes]"),
    "allow_partial": flag("Whether islands may be missing from the result. [default: no]"),
    "progress": flag("Show how the run goes; by default, on a terminal."),
    "sampler": choice("What each island does", *SAMPLERS),
    "particles": whole("N, the particles of an island, or its chains. [default: 32]", of=("smc", "mcmc", "ais")),
    "mutations": whole("M, the kernel steps of a stage. [default: 20; ais: 1]", of=TEMPERED),
    "decorrelate": share("Adaptive M: mutate until correlations have fallen to this.", ("smc",)),
    "while_falling": share("Adaptive M: mutate while correlations fall by more than this.", ("smc",)),
    "max_mutations": whole("At most so many with adaptive M. [default: 200]", of=("smc",)),
    "ess_fraction": share("ESS of a stage's weights, as a fraction of N. [default: 0.5]", ("smc",)),
    "resampling": choice(
        "How particles are resampled", "systematic", "stratified", "multinomial", "residual", of=("smc",)
    ),
    "schedule": Setting(str, _schedule, "Fixed temperings with commas, rising to 1.", TEMPERED),
    "max_stages": whole("An error after so many. [default: 10000]", of=("smc",)),
    "waste_free": flag("All states of a stage are particles; N is a multiple of M + 1. [default: no]", ("smc",)),
    "burn_in": whole(
        "Steps before the first draw. [default: 900; mpmcmc: 500]", minimum=0, of=("mcmc", "mpmcmc")
    ),
    "proposals": whole("K, the points that a step proposes. [default: 32]", of=("mpmcmc",)),
    "steps": whole("Steps after burn-in, whose points are all used. [default: 1000]", of=("mpmcmc",)),
    "adaptive": flag("Learn the proposals' covariance from past points. [default: no]", ("mpmcmc",)),
    "draws": whole("Draws of each chain. [default: 1]", of=("mcmc",)),
    "thin": whole("Steps from one draw to the next. [default: 1]", of=("mcmc",)),
    "shared_start": flag("All chains of an island start at one point. [default: no]", ("mcmc",)),
    "anneal": positive("Tempering that burn-in begins at, up to 1. [default: 1]", ("mcmc",)),
    "tune": choice("Whether an island's chains share a step size", "together", "alone", of=("mcmc",)),
    "start": choice("Where chains start", "prior", "optimised", of=("mcmc",)),
    "start_epochs": whole("Epochs of --start optimised. [default: 500]", of=("mcmc",)),
    "start_settle": whole("Steps of one leapfrog after --start optimised. [default: 64]", minimum=0, of=("mcmc",)),
    "start_shrink": positive("Factor on the draws that --start optimised climbs from. [default: 1]", ("mcmc",)),
    "start_learning_rate": positive("Learning rate of --start optimised, at first. [default: 0.01]", ("mcmc",)),
    "start_batch_rows": whole("Rows of a step of --start optimised; by default all.", of=("mcmc",)),
    "kernel": choice("How particles move", *KERNELS),
    "trajectory": positive("Length of a trajectory; leapfrogs follow from the step size.", ("hmc",)),
    "leapfrogs": whole("Leapfrogs of a trajectory. [default: 10]", of=("hmc",)),
    "max_leapfrogs": whole("Limit on leapfrogs with --trajectory. [default: 1000]", of=("hmc",)),
    "step_size": positive("Fixed step size; adapted by default.", TUNED),
    "target_acceptance": share("What adaptation aims at.", TUNED),
    "stretch": positive("Largest factor of a stretch, above 1. [default: 2]", ("stretch",)),
    "jump": Setting(float, _rate, "Probability of a jump between modes. [default: 0.1]", ("de",)),
    "noise": positive("Of moves, in units of the prior's std. [default: 0.0001]", ("de",)),
    "mass": choice("Mass", "identity", "population", "fisher", of=("hmc", "mala")),
    "scale": dataclasses.replace(
        choice("Scale of proposals", "population", "prior", "identity", of=("pcn", "mh")),
        help="Scale of proposals: population, or prior (pcn), or identity (mh).",
    ),
    "model": choice("A built-in network, where PROBLEM is a data set", "mlp", "cnn", "logistic"),
    "hidden": Setting(str, _widths, "Units of each hidden layer of mlp, as 64,32. [default: 64]"),
    "activation": choice("Of mlp's hidden layers", "relu", "tanh", "sigmoid"),
    "channels": whole("Channels of cnn. [default: 4]"),
    "train": whole("Take the first so many training rows of the data set."),
    "prior_std": positive("Standard deviation of the Gaussian prior; by default, --kaiming he."),
    "bias_std": positive("Another one for biases."),
    "kaiming": choice("Prior standard deviations by layer", "he", "torch"),
    "stages": whole("Stages of SMC, where known; by default, a small pilot run finds them."),
    "failures_per_hour": Setting(float, _rate, "Failures of each worker, as on machines that may be taken away."),
    "time": text("SLURM's time limit of a task, as 2:00:00."),
    "partition": text("SLURM's partition."),
    "mem": text("Memory of a task, as 4G."),
    "sbatch": texts("A further option of sbatch, as --sbatch --gres=gpu:1; may be repeated."),
    "setup": texts("A line of shell before Python starts, as --setup 'module load cuda'; may be repeated."),
    "blocks_per_task": whole("Blocks that a task runs one after another. [default: 1]"),
    "at_once": whole("Tasks that run at a time; by default, as many as SLURM finds room for."),
    "grace_seconds": whole("How long before the time limit a task is told to write a checkpoint. [default: 120]"),
    "dependency": choice("When the merge job runs", "afterany", "afterok"),
}  # fmt: skip
OPTIMISED = {
    "start_epochs": "epochs",
    "start_learning_rate": "learning_rate",
    "start_batch_rows": "batch_rows",
    "start_shrink": "shrink",
    "start_settle": "settle",
}
SAMPLING = [name for name, setting in SETTINGS.items() if setting.of or name in ("sampler", "kernel")]
DEFINING = ["islands", "seed", "islands_per_block", "chunk_rows", "keep", "threads", *SAMPLING]
ENGINE = ["engine", "workers", "retries", "checkpoint_seconds"]
BUDGET = ["max_seconds", "max_epochs", "finish_started", "allow_partial", "progress"]
MODEL = ["model", "hidden", "activation", "channels", "train", "prior_std", "bias_std", "kaiming"]
SLURM = [
    "time",
    "partition",
    "mem",
    "sbatch",
    "setup",
    "blocks_per_task",
    "at_once",
    "grace_seconds",
    "dependency",
]
PANELS = {**dict.fromkeys(("sampler",), "Sampler"), "kernel": "Kernel", **dict.fromkeys(SLURM, "SLURM")}
PANELS |= dict.fromkeys(MODEL, "Model")
PANELS |= {**dict.fromkeys(("threads", *ENGINE), "Engine"), **dict.fromkeys(BUDGET, "Budget and result")}


def takes(names: Iterable[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command with `**settings` an option for each of these settings; those not given are None."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(name))
            for name in names
        ]
        command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return command

    return decorate


def _option(name: str) -> Any:
    setting = SETTINGS[name]
    spelling = name.replace("_", "-")
    names = f"--{spelling}/--no-{spelling}" if setting.kind is bool else f"--{spelling}"
    info = typer.Option(
        names,
        help=f"{setting.help}{_owners(setting)}",
        rich_help_panel=PANELS.get(name, setting.panel),
        show_default=False,
        autocompletion=(lambda: list(setting.choices)) if setting.choices else None,
    )
    return Annotated[setting.kind | None, info]


def _owners(setting: Setting) -> str:
    everyone = SAMPLERS if setting.panel == "Sampler" else KERNELS
    return f" ({', '.join(setting.of)})" if setting.of and set(setting.of) != set(everyone) else ""


def gather(config: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings that were given, each checked; options win over the file."""
    whole = read_config(config) if config else {}
    whole |= {name: value for name, value in given.items() if value is not None and value != []}
    try:
        checked = {name: SETTINGS[name].check(name, value) for name, value in whole.items()}
        _check_owners(checked)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    return checked


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; check the path after --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML file: {error}; write lines like islands = 8") from error
    settings = {name.replace("-", "_"): value for name, value in found.items()}
    for name, value in settings.items():
        if isinstance(value, dict):
            raise UsageError(f"{path}: {name!r} is a table; settings stand at the top, without tables")
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it may hold {', '.join(SETTINGS)}"
            raise UsageError(f"{path}: there is no setting {name!r}; {hint}")
    return settings


def _check_owners(settings: Mapping[str, Any]) -> None:
    """Raise if a setting is not one of the chosen sampler and kernel."""
    sampler, kernel = settings.get("sampler", "smc"), settings.get("kernel", "hmc")
    if sampler == "mpmcmc":
        if "kernel" in settings:
            raise ValueError(
                f"kernel={kernel!r} has no part in mpmcmc, which proposes points itself; leave it out"
            )
        kernel = sampler
    chosen = {"Sampler": sampler, "Kernel": kernel}
    for name, value in settings.items():
        setting = SETTINGS[name]
        if setting.of and chosen[setting.panel] not in setting.of:
            kind = setting.panel.lower()
            raise ValueError(
                f"{name}={value!r} is a setting of {kind} {' or '.join(setting.of)}, and the {kind} is "
                f"{chosen[setting.panel]}; leave it out, or change --{kind}"
            )
    rules = [name for name in ("mutations", *RULES) if name in settings]
    if len(rules) > 1:
        raise ValueError(f"{' and '.join(rules)} both say how many mutations to make; leave one out")
    if "max_mutations" in settings and not set(RULES) & set(rules):
        raise ValueError("max_mutations is a limit for decorrelate; add --decorrelate 0.05, or use --mutations")
    for name in OPTIMISED:
        if name in settings and settings.get("start") != "optimised":
            raise ValueError(
                f"{name}={settings[name]!r} is a setting of --start optimised; add that, or leave it out"
            )


def build_sampler(settings: Mapping[str, Any]) -> Sampler:
    """The sampler that settings mean. Imports JAX."""
    import isles

    name = settings.get("sampler", "smc")
    owned = lambda panel: {
        key: value for key, value in settings.items() if SETTINGS[key].of and SETTINGS[key].panel == panel
    }
    chosen = owned("Sampler")
    for rule in RULES:
        if rule in chosen:
            most = chosen.pop("max_mutations", 200)
            chosen["mutations"] = getattr(isles, RULES[rule])(chosen.pop(rule), most)
    if chosen.get("start") == "optimised":
        given = {field: chosen.pop(key) for key, field in OPTIMISED.items() if key in chosen}
        chosen["start"] = isles.Optimised(**given)
    if name == "mcmc" and "particles" in chosen:
        chosen["chains"] = chosen.pop("particles")
    try:
        if name == "mpmcmc":
            return isles.MPMCMC(**chosen, **owned("Kernel"))
        kernel = getattr(isles, KERNELS[settings.get("kernel", "hmc")])(**owned("Kernel"))
        return getattr(isles, SAMPLERS[name])(kernel, **chosen)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
