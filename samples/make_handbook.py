"""handbook.md to handbook.pdf: a page or more for every chapter.

python -m samples.make_handbook
"""

from datetime import UTC, datetime
from pathlib import Path

from fpdf import FPDF
from fpdf.enums import XPos, YPos

from samples import HANDBOOK

SOURCE = Path(__file__).parent / "handbook.md"


class Handbook(FPDF):
    """A4, with the page's number at its foot."""

    def footer(self) -> None:
        """The page's number."""
        self.set_y(-15)
        self.set_font("helvetica", size=9)
        self.cell(0, 10, str(self.page_no()), align="C")


def main() -> None:
    """Write the PDF."""
    title, *chapters = SOURCE.read_text(encoding="utf-8").split("\n## ")
    pdf = Handbook()
    pdf.set_title(title.removeprefix("# ").strip())
    pdf.set_creation_date(datetime(2025, 3, 1, tzinfo=UTC))  # the same file every time
    pdf.set_margins(25, 22)
    pdf.set_auto_page_break(True, margin=22)
    for chapter in chapters:
        heading, *paragraphs = [part.strip() for part in chapter.split("\n\n") if part.strip()]
        pdf.add_page()
        pdf.set_font("helvetica", style="B", size=15)
        pdf.multi_cell(0, 9, heading, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        pdf.set_font("helvetica", size=11)
        for paragraph in paragraphs:
            pdf.ln(3)
            pdf.multi_cell(0, 6, paragraph.replace("\n", " "), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.output(str(HANDBOOK))


if __name__ == "__main__":
    main()
