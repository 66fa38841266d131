"""Commands about data sets: which there are, fetching them, and computing features. None of them imports JAX."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from isles.cli import output
from isles.cli.app import UsageError, app
from isles.cli.runs import Json

sets = typer.Typer(
    help="List data sets, fetch them, or compute features of raw data.",
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
app.add_typer(sets, name="data")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the data set.", show_default=False)]
Rows = Annotated[int | None, typer.Option(help="Take the first so many rows.", show_default=False)]


@sets.callback()
def choose(context: typer.Context, json: Json = False) -> None:
    """List data sets, fetch them, or compute features of raw data.

    **Examples**

        isles data

        isles data fetch australian

        isles data encode imdb
    """
    if context.invoked_subcommand is None:
        show(json)


@sets.command("list")
def show(json: Json = False) -> None:
    """Show all data sets, and whether they are at hand."""
    from isles import data

    found = data.names()
    if json:
        output.show_json({name: dataclasses.asdict(row) for name, row in found.items()})
        return
    rows = [(name, row.summary, "yes" if row.available else "no", row.where) for name, row in found.items()]
    output.show_table(("name", "what it is", "here", "where"), rows)


@sets.command()
def fetch(name: Name, train: Rows = None, test: Rows = None, json: Json = False) -> None:
    """Read a data set once, downloading what is not at hand, and say what it holds.

    **Examples**

        isles data fetch australian

        isles data fetch mnist --train 60000 --test 10000
    """
    from isles.cli.arrays import load_data

    found = load_data(name, train=train, test=test)
    facts = {
        "name": found.name,
        "training rows": len(found.x_train),
        "test rows": len(found.x_test),
        "row": list(found.x_train.shape[1:]),
        "classes": list(found.classes or ()),
        "licence": found.licence,
        "source": found.source,
    }
    show_facts(facts, json)


@sets.command()
def encode(
    name: Name,
    encoder: Annotated[
        str | None,
        typer.Option(help="As torchvision:resnet50; by default, the one of the literature.", show_default=False),
    ] = None,
    chunk: Annotated[int, typer.Option(help="Rows that the encoder gets at a time.", min=1)] = 256,
    json: Json = False,
) -> None:
    """Compute the features of a data set from its raw data, and keep them where runs find them.

    Raw data are fetched if they are not at hand. An interrupted command goes on where it was.

    **Example**

        isles data encode imdb --encoder sentence-transformers:all-mpnet-base-v2
    """
    from isles import data
    from isles.data.sources import cache

    try:
        usual = data.default_encoder(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    chosen = encoder or usual
    raw = data.raw(name)
    folder = lambda split: cache() / "encoding" / f"{name}-{split}-{chosen.replace(':', '-').replace('/', '-')}"
    train = data.encode(raw.x_train, chosen, folder("train"), chunk)
    test = data.encode(raw.x_test, chosen, folder("test"), chunk)
    path = data.keep(name, train, raw.y_train, test, raw.y_test, encoder=chosen)
    facts = {"file": str(path), "encoder": chosen, "training rows": len(train), "test rows": len(test)}
    show_facts({**facts, "features": train.shape[1]}, json)


def show_facts(facts: dict[str, object], json: bool) -> None:
    """Named values, as lines or as JSON."""
    if json:
        output.show_json({name.replace(" ", "_"): value for name, value in facts.items()})
        return
    for name, value in facts.items():
        typer.echo(f"{name:<13}  {', '.join(map(str, value)) if isinstance(value, list) else value}")
