# Which figures there are, and what each reads; and the same of the explorer.


def drawable():
    """The figures of the registry whose tables the config computes."""
    return {name: figure for name, figure in FIGURES.items() if set(figure.tables) <= set(table_names())}


def figure_names():
    """Every figure as it stands in paths: name, or name/subject for each model or beta."""
    subjects = {"model": list(GRID.sources), "beta": [f"b{beta}" for beta in GRID.betas]}
    return [
        "/".join(filter(None, [name, subject]))
        for name, figure in drawable().items()
        for subject in subjects.get(figure.per, [None])
    ]


def figure_tables(figure):
    """The tables that a figure reads."""
    return [f"results/tables/{table}.parquet" for table in FIGURES[figure.split("/")[0]].tables]


def figure_parameters(figure):
    """What a script needs to know of a figure."""
    name, _, subject = figure.partition("/")
    model = subject if FIGURES[name].per == "model" else None
    return {
        "name": name,
        "subject": subject,
        "module": f"collapse.figures.{FIGURES[name].module}",
        "model": model,
        "depths": {deep: depth for deep, depth in GRID.depths.items() if model in (None, deep)},
    }


def figure_code(figure):
    """The code behind a figure."""
    return code_hash("draw_figure.py", figure_parameters(figure)["module"])


def figure_questions():
    """Each figure with the question under which the report shows it."""
    return {name: FIGURES[name.split("/")[0]].question for name in figure_names()}


def explorer():
    """The explorer's page, where the config asks for what it shows."""
    return [EXPLORER] if "projections" in GRID.metrics else []


def explorer_tables():
    """The tables that the explorer reads, of those that the config computes."""
    return [table for table in EXPLORER_TABLES if table in table_names()]


def explorer_source(suffix):
    """A file of workflow/report that the explorer is made of."""
    return os.path.normpath(f"{REPOSITORY}/workflow/report/explorer.{suffix}")
