"""Subcommands of other packages: listed with their package, run, and a broken one stops nothing."""

from __future__ import annotations

import pytest

from engine_testing.plugins import install

GREET = """
import click

@click.command("greet")
@click.argument("name")
def greet(name):
    "Greet somebody by name."
    click.echo(f"hello {name}")
"""


@pytest.fixture
def offer(plugin_folder):
    def offer(name, source=GREET, group="engine.commands.v1", distribution=""):
        install(
            plugin_folder, name, f"command_{name}:greet", group=group, source=source,
            distribution=distribution,
        )  # fmt: skip

    return offer


def test_a_command_of_another_package_runs(cli, offer):
    offer("greet")
    done = cli("greet", "Ada")
    assert (done.status, done.out) == (0, "hello Ada\n")


def test_the_list_of_commands_names_its_package(cli, offer):
    offer("greet", distribution="friendly-engine")
    done = cli("--help")
    assert done.status == 0
    assert "greet Greet somebody by name. (friendly-engine)" in done.text
    assert "slice Slice a model" in done.text
    assert "(inference-engine)" not in done.text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_library\n", "no_such_library"),
        ("raise SystemExit(5)\n", "SystemExit: 5"),
        ("greet = 7\n", "cannot serve as command"),
    ],
)
def test_a_broken_command_says_why_and_stops_no_other(cli, offer, source, reason):
    offer("torn", source)
    offer("greet")
    done = cli("torn", "--some", "words")
    assert done.status == 1
    assert done.err.startswith("error: command 'torn' is broken: ")
    assert reason in done.err
    assert cli("greet", "Ada").out == "hello Ada\n"
    assert "torn (broken, of engine-plugin-torn: engine plugins)" in cli("--help").text


def test_a_command_of_another_version_says_so(cli, offer):
    offer("later", "raise SystemExit('imported')", group="engine.commands.v2")
    cli("later").fails("'engine.commands.v2', this core 'engine.commands.v1'")


def test_no_package_replaces_a_command_of_the_core(cli, offer):
    offer("run", "raise SystemExit('imported')")
    assert "Run a model once" in cli("run", "--help").text


def test_a_misspelt_name_of_it_is_answered_with_the_closest(cli, offer):
    offer("greet")
    cli("gret").fails("did you mean 'greet'?", 2)


@pytest.mark.parametrize("word", ["greet", "slice"])
def test_no_group_of_commands_has_them_below_it(cli, offer, word):
    offer("greet")
    cli("plugins", word, "--help").fails(f"no such command '{word}'", 2)
    assert f"  {word} " not in cli("plugins", "--help").out
