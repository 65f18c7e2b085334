"""The command line: one file per noun. An error is one message on stderr and the exit code of its kind.

0 done, 1 the work failed, 2 the input is wrong, 3 a service cannot be reached, 4 refused, 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import tuneyard
from tuneyard.cli import account, data, init, model, platform, queue, sweep, webhook
from tuneyard.cli.gc import gc
from tuneyard.cli.usage import usage
from tuneyard.settings import without_passwords
from tuneyard_pipelines.errors import UNWRITABLE, TuneyardError

TRAIN_EXTRA = {"torch", "pytorch_lightning", "ray", "datasets", "tokenizers", "safetensors", "sacrebleu", "optuna"}

app = typer.Typer(
    name="tuneyard",
    help="Train sweeps of sequence models from one YAML file, browse them in MLflow, use the best.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's Markdown would cost a third of what --help takes
)
app.add_typer(sweep.app, name="sweep")
app.add_typer(model.app, name="model")
app.add_typer(queue.app, name="queue")
app.add_typer(data.app, name="data")
app.add_typer(account.app, name="token")
app.add_typer(webhook.app, name="webhook")
for command in (account.login, account.logout, account.whoami):
    app.command()(command)
app.command()(init.init)
app.command()(gc)
app.command()(usage)
for command in (platform.up, platform.down, platform.status, platform.doctor):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(tuneyard.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit. Typer itself turns Ctrl-C into 130 and a closed pipe into 1."""
    try:
        app()
    except TuneyardError as error:
        print(f"error: {without_passwords(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in TRAIN_EXTRA:
            raise
        print(
            f"error: {error.name} is not installed; training and predicting need: pip install 'tuneyard[train]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except PermissionError as error:
        print(f"error: {error}; have its owner do this, or let your group write there", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        print(f"error: {error}; free space, then try again", file=sys.stderr)
        sys.exit(1)
