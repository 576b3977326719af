"""Events from Kafka into a lakehouse through Spark: none lost, none twice, fast, and visible.

pipeline = penstock.load("orders.yaml")
print(pipeline.plan().waiting)
summary = pipeline.run(available_now=True)
"""

from penstock.api import Pipeline, load

__all__ = ["Pipeline", "__version__", "load"]

__version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":
        # Asked of the installed package, and only when wanted: the question takes longer than the import.
        from importlib.metadata import version

        return version("penstock")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
