from .conftest import SMALL, Command


def test_cite_prints_bibtex_for_several_runs(command: Command) -> None:
    assert command("train", "--steps", 2, "--sync", "detag", "--out", "a", "--optimizer", "adamw", *SMALL).code == 0
    assert command("train", "--steps", 2, "--period", 2, "--out", "b", *SMALL).code == 0
    said = command("cite", "a", "b")
    assert said.code == 0, said.err
    for key in ("equipoise", "lu2021optimal", "lu2023decentralized", "loshchilov2019decoupled", "stich2019local"):
        assert said.out.count(f"{{{key},") == 1
    assert "lian2017can" not in said.out


def test_no_run(command: Command) -> None:
    said = command("cite", "nowhere")
    assert said.code == 2
    assert "nowhere is not the folder of a run" in said.err
