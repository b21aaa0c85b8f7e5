"""Options that several commands share, so that they read and behave alike."""

import typer

ENGINE = typer.Option(help="cohort, inprocess or ray; the fastest one here if not given", show_default=False)
DEVICE = typer.Option(
    help="where models train: auto, cpu, cuda, cuda:1 or mps; what the scenario says if not given", show_default=False
)
OUT = typer.Option(help="the run's folder; runs/NAME if not given. Never written over", show_default=False)
SET = typer.Option(
    "--set", metavar="KEY=VALUE", help="set a key of the scenario anew: --set recipe.lr=0.1", show_default=False
)
DATA_ROOT = typer.Option(
    envvar="FEDSMALL_DATA", help="the folder with data files (MedMNIST, heart_disease, susy)", show_default=False
)
PROCESSES = typer.Option(min=1, help="how many plans run at once; one for each core if not given", show_default=False)
WORKERS = typer.Option(
    min=1, help="cohort: processes that share the sites of one plan, for many sites or long walks", show_default=False
)
ADDRESS = typer.Option(
    help='cohort, ray: a running Ray cluster ("auto", or its address) that the sites are spread over',
    show_default=False,
)
