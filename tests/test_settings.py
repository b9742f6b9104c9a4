from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from thread_service import env_example, settings
from thread_service.launch_lines import LaunchLine
from thread_service.settings import Loaded, Settings, SettingsError

DOCS = Path(__file__).parents[1] / "docs" / "settings.md"


def load(
    flags: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    env_file: Mapping[str, str] | None = None,
    **launch_line: str,
) -> Loaded:
    given = {"--" + name.replace("_", "-"): text for name, text in launch_line.items()}
    return settings.load(flags or {}, LaunchLine(given), variables or {}, env_file or {})


def test_the_documentation_lists_every_setting() -> None:
    assert DOCS.read_text(encoding="utf-8") == settings.markdown(), "run python -m thread_service.settings"


def test_the_example_of_an_env_file_holds_every_variable_and_changes_nothing(tmp_path: Path) -> None:
    example = DOCS.parents[1] / ".env.example"
    assert example.read_text(encoding="utf-8") == env_example.page(), "run python -m thread_service.env_example"
    copy = tmp_path / ".env"
    copy.write_text(env_example.page().replace("\n# ", "\n"), encoding="utf-8")
    uncommented = settings.read_env_file(copy)
    variables = [declaration.variable for declaration in settings.declarations().values()]
    assert [name for name in uncommented if name.isupper()] == [*variables, *settings.VARIABLES]
    assert load({}, {}, uncommented).settings == Settings()


def test_defaults_keep_to_this_machine_and_need_no_account() -> None:
    assert load().settings == Settings()
    assert load().notices == ()
    assert (Settings().host, Settings().port, Settings().embedder) == ("127.0.0.1", 8081, "")


def test_a_flag_wins_over_the_environment_and_that_over_the_env_file() -> None:
    flags, variables, env_file = {"port": "1"}, {"THREAD_PORT": "2"}, {"THREAD_PORT": "3"}
    assert load(flags, variables, env_file).settings.port == 1
    assert load({}, variables, env_file).settings.port == 2
    assert load({}, {}, env_file).settings.port == 3


def test_blank_is_not_given_but_hides_the_env_file() -> None:
    assert load({"port": " "}, {"THREAD_PORT": "2"}).settings.port == 2
    assert load({}, {"THREAD_PORT": ""}, {"THREAD_PORT": "3"}).settings.port == 8081


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "0", 0),
        ("lexical", "OFF", False),
        ("mention_linking", "on", True),
        ("graph_mode", "off", "off"),
        ("compress", "Always", "always"),
        ("pq_bits", "16", 16),
        ("device", " CPU ", "cpu"),
        ("embedder", "Mistral", "mistral"),
        ("embedding_url", "https://[::1]:8000/v1", "https://[::1]:8000/v1"),
        ("data_dir", "/a/../b", Path("/b")),
        ("max_body_mb", "1", 1),
        ("api_key", "k3y", "k3y"),
        ("node_id", "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "1B4E28BA-2FA1-11D2-883F-0016D3CCA427"),
        ("mothership_host", " 10.0.0.1 ", "10.0.0.1"),
        ("fleet_host", "[::1]", "[::1]"),
        ("advertise_grpc_port", "19090", 19_090),
        ("min_free_gb", "0.5", 0.5),
        ("vllm_gpu_share", ".9", 0.9),
        ("vllm_gpu_share", "1", 1.0),
        ("gpu_memory", "0.25", 0.25),
        ("graph_url", "http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_values_are_read(name: str, text: str, value: Any) -> None:
    assert getattr(load({name: text}).settings, name) == value


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("port", "65536", "whole number from 0 to 65535"),
        ("port", "8_1", "whole number"),
        ("port", "٣", "whole number"),
        ("chunk_chars", "9" * 10_000, "whole number from 1"),
        ("queue_documents", "0", "whole number from 1"),
        ("device", "gpu", "auto, cpu, cuda"),
        ("lexical", "yes", "on, off"),
        ("graph_mode", "gate", "boost, narrow, off"),
        ("compress", "never", "auto, always"),
        ("pq_bits", "0", "whole number from 1 to 16"),
        ("pq_bits", "17", "whole number from 1 to 16"),
        ("embedder", "other", "local, mistral, openai"),
        ("embedding_url", "ftp://there", "http://127.0.0.1"),
        ("embedding_url", "http://u:s3cret@there/v1", "without a password"),
        ("embedding_url", "http://there/v1?key=s3cret", "a query"),
        ("api_key", "two words", "without spaces"),
        ("mothership_host", "http://sewn", "host name or IP"),
        ("mothership_grpc_port", "0", "whole number from 1"),
        ("min_free_gb", "-1", "number of gigabytes"),
        ("min_free_gb", "nan", "number of gigabytes"),
        ("data_dir", "/a\0b", "NUL"),
        ("vllm_gpu_share", "0", "over 0 up to 1"),
        ("vllm_gpu_share", "1.5", "over 0 up to 1"),
        ("gpu_memory", "0", "over 0 up to 1"),
        ("graph_url", "there", "http://127.0.0.1"),
    ],
)
def test_a_bad_value_names_its_flag_or_variable_and_the_remedy(name: str, text: str, remedy: str) -> None:
    declaration = settings.declarations()[name]
    sources = [
        ({name: text}, {}, {}, declaration.flag),
        ({}, {declaration.variable: text}, {}, declaration.variable),
        ({}, {}, {declaration.variable: text}, declaration.variable + " (.env)"),
    ]
    for flags, variables, env_file, source in sources:
        with pytest.raises(SettingsError) as error:
            load(flags, variables, env_file)
        message = str(error.value)
        assert message.startswith(f"{source}: ")
        assert remedy in message
        assert len(message) < 200


def test_a_secret_is_never_shown() -> None:
    assert "k3y" not in repr(load({"api_key": "k3y"}))
    with pytest.raises(SettingsError) as error:
        load({"api_key": "pass word"})
    assert "pass" not in str(error.value)


@pytest.mark.parametrize("source", ["flag", "variable"])
def test_a_node_id_that_is_no_uuid_is_passed_over_with_a_notice(source: str) -> None:
    bad = "x" * 40
    loaded = load({"node_id": bad} if source == "flag" else {}, {"THREAD_NODE_ID": bad if source == "variable" else ""})
    assert loaded.settings.node_id == ""
    assert loaded.notices == (f"node id {'x' * 16!r} is not a UUID; the id in the data directory is used",)


def test_node_ids_are_taken_from_the_flag_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = "1B4E28BA-2FA1-11D2-883F-0016D3CCA427", "2B4E28BA-2FA1-11D2-883F-0016D3CCA427"
    assert load({"node_id": one}, {"THREAD_NODE_ID": other}).settings.node_id == one
    assert load({"node_id": " "}, {"THREAD_NODE_ID": f" {other.lower()}\n"}).settings.node_id == other
    # A flag that is no UUID is a mistake to be told about, not a reason to become another node.
    assert load({"node_id": "mine"}, {"THREAD_NODE_ID": other}).settings.node_id == ""


def test_rao_home_moves_data_and_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    alone = load().settings
    assert alone.data_dir == Path("/home/ada/Documents/thread-db")
    assert alone.models_dir == Path("/home/ada/.rao/models/huggingface")
    stack = {"RAO_HOME": "/rao", "RAO_APP": "craft"}
    moved = load({}, stack).settings
    assert moved.data_dir == Path("/rao/apps/craft/thread-db")
    assert moved.models_dir == Path("/rao/models/huggingface")
    assert load({}, {"RAO_HOME": "/rao"}).settings.data_dir == alone.data_dir
    assert load({}, {**stack, "THREAD_DATA_DIR": "/v"}).settings.data_dir == Path("/v")
    assert load({"data_dir": "/f"}, {**stack, "THREAD_DATA_DIR": "/v"}).settings.data_dir == Path("/f")
    assert load({"data_dir": ""}, {**stack, "THREAD_DATA_DIR": " "}).settings.data_dir == moved.data_dir
    assert load({}, {"RAO_HOME": "", "RAO_APP": "craft"}).settings.data_dir == alone.data_dir
    assert load({}, {"RAO_HOME": "~/r"}).settings.models_dir != Path("/home/ada/r/models/huggingface")


@pytest.mark.parametrize(
    ("variables", "name"),
    [({"RAO_HOME": "rel"}, "RAO_HOME"), ({"RAO_HOME": "/r", "RAO_APP": "../x"}, "RAO_APP")],
)
def test_a_rao_home_that_cannot_be_meant_is_refused(variables: dict[str, str], name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: "):
        load({}, variables)


def test_older_spellings_set_what_they_used_to_set() -> None:
    variables = {"THREAD_EMBEDDER": "mistral", "THREAD_EMBEDDING_MODEL": "org/other"}
    loaded = load({}, variables, use_mlx="on", mlx_model="rao-studios/voyage-4-nano-mlx-8bit")
    assert loaded.settings.embedding_model == "voyageai/voyage-4-nano"
    assert loaded.settings.embedder == "local"
    assert "voyageai/voyage-4-nano is used" in loaded.notices[0]
    assert load({"embedding_model": "org/flag"}, mlx_model="org/alias").settings.embedding_model == "org/flag"


@pytest.mark.parametrize(
    ("flags", "launch_line", "backend", "model", "said"),
    [
        ({"graph_backend": "MLX", "graph_model": "m"}, {}, "vllm", "m", ""),
        ({"graph_backend": "mistral", "graph_model": "m"}, {"graph_mistral_model": "n"}, "mistral", "n", ""),
        ({"graph_backend": "openai", "graph_model": "m"}, {"graph_mistral_model": "n"}, "openai", "m", ""),
        ({"graph_backend": " "}, {"graph_mistral_model": "n"}, "", "", ""),
        ({"graph_backend": "banana"}, {}, "keyword", "", "--graph-backend 'banana' is not one of vllm"),
        ({"graph_backend": "banana"}, {"no_graph_extraction": "on"}, "keyword", "", ""),
        ({"graph_backend": "mlx"}, {"no_graph_extraction": "on"}, "keyword", "", ""),
        (
            {"graph_model": "mlx-community/Mistral-Nemo-Instruct-2407-4bit"},
            {},
            "",
            "casperhansen/mistral-nemo-instruct-2407-awq",
            "the model mlx-community/Mistral-Nemo-Instruct-2407-4bit exists for MLX only",
        ),
    ],
)
def test_older_words_for_extraction_mean_what_they_meant(
    flags: dict[str, str], launch_line: dict[str, str], backend: str, model: str, said: str
) -> None:
    loaded = load(flags, **launch_line)
    assert (loaded.settings.graph_backend, loaded.settings.graph_model) == (backend, model)
    assert [notice[: len(said)] for notice in loaded.notices] == ([said] if said else [])


def test_the_command_of_vllm_has_a_short_variable() -> None:
    assert load({}, {"THREAD_VLLM": "/opt/vllm/bin/vllm"}).settings.vllm_command == "/opt/vllm/bin/vllm"
    assert load({}, {"THREAD_GRAPH_BACKEND": "keyword"}).settings.graph_backend == "keyword"


def test_variables_of_the_original_that_have_no_meaning_here_do_no_harm() -> None:
    assert load({}, {"THREAD_PQ_MLX": "1", "THREAD_PQ_MLX_MIN_VK": "many"}).settings == Settings()


def test_the_env_file_is_plain_assignments(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text('# comment\n A = b=c \n\n=nameless\nnothing\nQ="kept"\nEMPTY=\nNUL=\0\n', encoding="utf-8")
    assert settings.read_env_file(path) == {"A": "b=c", "Q": '"kept"', "EMPTY": ""}
    assert settings.read_env_file(tmp_path / "missing") == {}
    assert settings.read_env_file(tmp_path) == {}
    path.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="repair or remove"):
        settings.read_env_file(path)
