import pytest

from fedbnn.cli.app import main


@pytest.fixture
def call(capsys):
    """Run the command line: exit code, standard output, standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call
