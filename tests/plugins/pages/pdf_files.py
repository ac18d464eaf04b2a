"""PDFs of a few lines, written as plain syntax, and a JPEG of any size."""

import io

from PIL import Image

# A page of A6 paper, in points.
PAPER = (298, 420)


def words_at(x, y, text, size=12):
    """The content of a page that shows a text from this point on, counted from the bottom left corner."""
    return f"BT /F1 {size} Tf {x} {y} Td ({text}) Tj ET"


def pdf_of(*contents, paper=PAPER, page="", font="", trailer="", objects=()):
    """A PDF with a page for each content; `page`, `font` and `trailer` are more entries of these dictionaries.

    The numbers of `objects` begin with 10.
    """
    count = len(contents)
    first = 10 + len(objects)
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(count))
    numbered = {
        1: "<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Count {count} /Kids [{kids}] >>",
        3: f"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica {font} >>",
        **dict(enumerate(objects, start=10)),
    }
    for number, content in enumerate(contents):
        here = first + 2 * number
        numbered[here] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {paper[0]} {paper[1]}] /Contents {here + 1} 0 R "
            f"/Resources << /Font << /F1 3 0 R >> >> {page} >>"
        )
        numbered[here + 1] = stream(content)
    return _file(numbered, trailer)


def stream(content):
    return f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"


def many_pages(count, content):
    """A PDF whose pages, all of one content, are few bytes each."""
    page = "<< /Type /Page /Parent 2 0 R /Contents 4 0 R >>"
    kids = " ".join(f"{number} 0 R" for number in range(10, 10 + count))
    numbered = {
        1: "<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Count {count} /Kids [{kids}] /MediaBox [0 0 {PAPER[0]} {PAPER[1]}] "
        "/Resources << /Font << /F1 3 0 R >> >> >>",
        3: "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        4: stream(content),
        **dict.fromkeys(range(10, 10 + count), page),
    }
    return _file(numbered)


def locked_pdf():
    """A PDF that opens with a password only; nobody knows it."""
    entries = f"/Encrypt << /Filter /Standard /V 1 /R 2 /O <{'00' * 32}> /U <{'11' * 32}> /P -4 >>"
    return pdf_of(words_at(20, 300, "secret"), trailer=f"{entries} /ID [<00> <00>]")


def large_jpeg(side):
    """A grey JPEG of `side` x `side` pixels, a multiple of 16: each of its blocks is the six bits 001010."""
    out = io.BytesIO()
    Image.new("L", (16, 16), 128).save(out, "JPEG")
    data = out.getvalue()
    size = data.index(b"\xff\xc0") + 5
    start = data.index(b"\xff\xda")
    scan = start + 2 + int.from_bytes(data[start + 2 : start + 4])
    head = data[:size] + 2 * side.to_bytes(2) + data[size + 4 : scan]
    return head + b"\x28\xa2\x8a" * ((side // 8) ** 2 // 4) + b"\xff\xd9"


def _file(numbered, trailer=""):
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n")
    places = {}
    for number, content in sorted(numbered.items()):
        places[number] = out.tell()
        out.write(f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1"))
    table, size = out.tell(), max(numbered) + 1
    out.write(f"xref\n0 {size}\n".encode())
    for number in range(size):
        row = f"{places[number]:010d} 00000 n" if number in places else "0000000000 65535 f"
        out.write(f"{row} \n".encode())
    out.write(f"trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\nstartxref\n{table}\n%%EOF\n".encode())
    return out.getvalue()
