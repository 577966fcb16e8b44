"""The paper's table and figures, made again: a plan names the runs, the driver does them, pages show them."""
