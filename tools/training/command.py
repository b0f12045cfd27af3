"""Train a draft model and a target model from the Python sources found on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from card.settings import REPOSITORY_ROOT
from training import corpus as corpus_files
from training import stages
from training.compute import Compute, compute_of, device_of
from training.divergences import Divergence
from training.heads.command import heads
from training.own_texts import texts
from training.parallel.command import parallel
from training.recipe import Recipe, read_recipe
from training.terminal import bar, console, print_figures, told
from training.workplace import Workplace, claim

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

Output = Annotated[Path, typer.Option(help="Folder of the pair and of all its making needs.")]
RecipeFile = Annotated[
    Path | None,
    typer.Option("--recipe", help="JSON that overrides fields of the recipe."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
_OUTPUT = Path("build/pair")
_OWN_PROMPTS = REPOSITORY_ROOT / "benchmarks" / "prompts.jsonl"


app.command()(texts)
app.command()(parallel)
app.command()(heads)


@app.command()
def distil(
    output: Output = _OUTPUT,
    recipe: RecipeFile = None,
    divergence: Annotated[
        Divergence | None,
        typer.Option(
            help="What is lowered: KL from target to draft (forward_kl), KL from draft to target "
            "(reverse_kl), the Jensen-Shannon divergence (jsd) or the total variation distance "
            "(tvd). Default: the recipe's, forward_kl."
        ),
    ] = None,
    on_policy: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of a batch that the draft itself writes; the rest is the target's and "
            "corpus text. Default: the recipe's, 0.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Of the texts' order and the draft's texts. Default: the recipe's."
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Distil the draft, as it was trained on the corpus, on texts of the target, the corpus and, if
    asked, the draft itself."""
    with told():
        place, chosen = _begin(output, recipe)
        asked = {"divergence": divergence, "on_policy_share": on_policy}
        update = {name: value for name, value in asked.items() if value is not None}
        distillation = chosen.distillation.model_copy(update=update)
        others = {} if seed is None else {"seed": seed}
        chosen = chosen.model_copy(update={"distillation": distillation, **others})
        _distil(place, chosen, compute_of(device))


@app.command()
def evaluate(
    pair: Annotated[Path, typer.Argument(help="Folder with `target` and `draft`.")] = _OUTPUT,
    draft: Annotated[
        Path | None,
        typer.Option(
            help="Another draft: PAIR/undistilled is that of before its distillation.",
            show_default="PAIR/draft",
        ),
    ] = None,
    prompts: Annotated[Path, typer.Option(help="JSONL with a text `prompt` in each line.")] = (
        _OWN_PROMPTS
    ),
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Use the first prompts only."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens written for a prompt.")] = 128,
    held_out: Annotated[
        Path | None,
        typer.Option(help="Held-out documents. Default: PAIR/corpus/held_out.jsonl, if there."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Device = "auto",
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write the figures to this file."),
    ] = None,
) -> None:
    """Print validation loss, agreement and ideal tokens per step of a pair; changes nothing."""
    with told():
        own_held_out = pair / "corpus" / corpus_files.HELD_OUT
        if held_out is None and own_held_out.is_file():
            held_out = own_held_out
        with bar("evaluate") as show:
            figures = stages.evaluate(
                pair / "target",
                draft or pair / "draft",
                prompts,
                held_out,
                device_of(device),
                limit,
                max_tokens,
                seed=seed,
                show=show,
            )
        print_figures(figures, f"{figures.prompts} prompts of {prompts.name}")
        if json_file is not None:
            json_file.write_text(json.dumps(asdict(figures), indent=2) + "\n", "utf-8")


@app.command(name="all")
def everything(
    output: Output = _OUTPUT,
    source: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder with Python sources; may be repeated. "
            "Default: the standard library and the installed packages."
        ),
    ] = None,
    recipe: RecipeFile = None,
    device: Device = "auto",
) -> None:
    """Run every stage that is not yet done, then evaluate."""
    with told():
        compute = compute_of(device)
        place, chosen = _begin(output, recipe)
        if not (place.corpus / corpus_files.SUMMARY).is_file():
            with bar("corpus") as show:
                roots = source or corpus_files.default_roots()
                found = corpus_files.gather(roots, place.corpus, chosen.sources, show)
            console.print(
                f"corpus: {found.train_documents} documents to train on, "
                f"{found.held_out_documents} held out, {found.characters / 1e6:.1f}M characters"
            )
        if not (place.tokenizer / "tokenizer.json").is_file():
            with bar("tokenizer") as show:
                show(None, "learning and encoding")
                train, held_out = stages.make_tokenizer(place, chosen)
            console.print(f"tokenizer: {train:,} tokens to train on, {held_out:,} held out")
        for role, folder in (("target", place.model("target")), ("draft", place.undistilled)):
            if not folder.is_dir():
                with bar(role) as show:
                    _tell(role, stages.train_model(place, chosen, role, compute, show))
        _distil(place, chosen, compute)
        evaluate(place.root, device=device)


def _begin(output: Path, recipe: Path | None) -> tuple[Workplace, Recipe]:
    chosen = read_recipe(recipe) if recipe else Recipe()
    return claim(output, chosen), chosen


def _distil(place: Workplace, recipe: Recipe, compute: Compute) -> None:
    with bar("own texts") as show:
        stages.own_texts(place, recipe, compute, show)
    with bar("distil") as show:
        _tell("distil", stages.distil(place, recipe, compute, show))


def _tell(stage: str, losses: list[float]) -> None:
    console.print(f"{stage}: {len(losses)} steps, training loss {losses[-1]:.3f}")
