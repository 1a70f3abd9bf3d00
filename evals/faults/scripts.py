"""What is asked: short documents, one to a collection, and three questions about each."""

from dataclasses import dataclass

MAX_TOKENS = 12


@dataclass(frozen=True)
class Script:
    """A document and the questions of one session. Together they stay within the working cache's budget, so that
    nothing is dropped and a turn from the cache equals one that is computed anew."""

    name: str
    document: str
    questions: tuple[str, ...]


SCRIPTS = (
    Script(
        "weir",
        "The main pump of the weir was built in 1931. Its oil is changed every 400 hours by the shift engineer. "
        "The sluice gate weighs 900 kilograms and opens in seven minutes.",
        (
            "How often is the oil of the main pump changed?",
            "Who changes the oil of the pump?",
            "How much does the sluice gate weigh?",
        ),
    ),
    Script(
        "library",
        "The library of Orrin opens at nine and closes at six. A reader may borrow twelve books for four weeks. "
        "The reading room has eighty seats, and the archive is in the cellar.",
        (
            "When does the library of Orrin open?",
            "How many books may a reader borrow?",
            "Where is the archive of the library?",
        ),
    ),
    Script(
        "ferry",
        "The ferry to Skarholm leaves at noon from the northern pier. A crossing takes fifty minutes and costs eleven "
        "crowns. Bicycles travel free, and dogs must stay on deck.",
        (
            "From where does the ferry to Skarholm leave?",
            "How long does the crossing of the ferry take?",
            "What do bicycles cost on the ferry?",
        ),
    ),
)
