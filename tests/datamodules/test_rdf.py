from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fl_lightning import datamodules
from fl_lightning.datamodules.rdf import read_pages, read_relations

HEAD = b"""<?xml version="1.0" encoding="UTF-8"?>
<RDF xmlns:r="http://www.w3.org/TR/RDF/" xmlns:d="http://purl.org/dc/elements/1.0/" xmlns="http://dmoz.org/rdf/">
  <!-- Generated at 2017-03-12 00:05:15 EST from DMOZ 2.0 -->

"""
TAIL = b"</RDF>\n"
CONTENT = b"""  <Topic xml:lang="en" r:about="" r:id="Top/Arts/Animation">
    <catid>423945</catid>
    <link1 r:resource="http://www.awn.com/"></link1>
    <link r:resource="http://www.toonhound.com/?a=1&amp;b=2"></link>
  </Topic>
  <ExternalPage about="http://www.awn.com/">
    <d:Title>Animation World Network</d:Title>
    <d:Description>Provides information: &quot;tools&quot; &amp; toys, &lt;b&gt;daily&lt;/b&gt;.</d:Description>
    <priority>1</priority>
    <topic>Top/Arts/Animation</topic>
  </ExternalPage>
  <ExternalPage about='http://www.toonhound.com/?a=1&amp;b=2'>
    <d:Title>Toonhound</d:Title>
    <mediadate>2001-02-03</mediadate>
    <topic>Top/Arts/Animation/Cartoons</topic>
    <ages>kids</ages>
  </ExternalPage>
  <Alias r:id="Top/Arts/Comics"/>
  <ExternalPage about="http://www.example.com/">
    <d:Title></d:Title>
    <d:Description/>
  </ExternalPage>
"""
STRUCTURE = """  <Topic r:id="Top/Arts/Animation">
    <catid>423945</catid>
    <d:Title>Animation</d:Title>
    <d:Description>&lt;p&gt;A topic's &lt;b&gt;own&lt;/b&gt; description.</d:Description>
    <lastUpdate>2017-03-01 00:00:00</lastUpdate>
    <narrow r:resource="Top/Arts/Animation/Anime"></narrow>
    <narrow1 r:resource="Top/Arts/Animation/Côte_d&apos;Azur"></narrow1>
    <narrow2 r:resource="Top/Arts/Animation/C"/>
    <letterbar r:resource="Top/Arts/Animation/A"></letterbar>
    <symbolic r:resource="Cartoons:Top/Arts/Comics"></symbolic>
    <symbolic1 r:resource="Top Films: A-Z:Top/Arts/Movies"/>
    <symbolic2 r:resource="R&amp;B:Top/Arts/Music/R&amp;B"/>
    <related r:resource="Top/Recreation/Toons:2"></related>
    <altlang r:resource="German:Top/World/Deutsch/Kultur"></altlang>
    <editor r:resource="nobody"></editor>
    <newsgroup r:resource="news:rec.arts.animation"/>
  </Topic>
  <Alias r:id="Comics:Top/Arts/Comics">
    <d:Title>Comics</d:Title>
    <Target r:resource="Top/Arts/Comics"></Target>
  </Alias>
  <Topic r:id="Top/Empty"></Topic>
""".encode()
PAGES = [
    ("Top/Arts/Animation", "Animation World Network", 'Provides information: "tools" & toys, <b>daily</b>.'),
    ("Top/Arts/Animation/Cartoons", "Toonhound", ""),
    ("Top/Arts/Animation", "", ""),
]


def dump(tmp_path: Path, body: bytes, *, zipped: bool = False) -> Path:
    path = tmp_path / ("dump.rdf.u8.gz" if zipped else "dump.rdf.u8")
    content = HEAD + body + TAIL
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


@pytest.mark.parametrize(("zipped", "block"), [(False, 1), (True, 64)])
def test_pages_and_relations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool, block: int) -> None:
    monkeypatch.setattr(datamodules.rdf, "_BLOCK_BYTES", block)
    assert list(read_pages(dump(tmp_path, CONTENT, zipped=zipped))) == PAGES
    targets = "Arts/Animation/Anime Arts/Animation/Côte_d'Azur Arts/Animation/C Arts/Comics Arts/Movies Arts/Music/R&B"
    relations = list(read_relations(dump(tmp_path, STRUCTURE, zipped=zipped)))
    assert relations == [("Top/Arts/Animation", f"Top/{name}") for name in [*targets.split(), "Recreation/Toons:2"]]


PAGE = b'<ExternalPage about="u"><d:Description>%b</d:Description><topic>Top/A</topic></ExternalPage>'


def test_odd_characters(tmp_path: Path) -> None:
    for written, read in [
        (b"a\x00b\x0bc\x1bd\x08", "abcd"),
        (b"tab\tand\nnew line", "tab\tand\nnew line"),
        (b"R & D, AT&T, &nbsp; &copy", "R & D, AT&T, &nbsp; &copy"),
        (b"&#65;&#x42; &#11;&#0;&#xFFFF;&#xD800;&#x110000;|", "AB |"),
        (b"&#99999999; &#xAAAAAAAAA;", "&#99999999; &#xAAAAAAAAA;"),
        (b"Caf\xe9, 1\xff2, \xe2\x82", "Caf\ufffd, 1\ufffd2, \ufffd"),
        (b"\xef\xbf\xbe\xef\xbf\xbf.", "."),
        ("日本語 Ελλάδα 😀 \u0085\u200b".encode(), "日本語 Ελλάδα 😀 \u0085\u200b"),
        (b"1 > 0", "1 > 0"),
        (b"<![CDATA[x < y]]>", "x < y"),
    ]:
        assert [text for _, _, text in read_pages(dump(tmp_path, PAGE % written))] == [read]


def test_a_damaged_dump_is_named(tmp_path: Path) -> None:
    for content in [
        b"",
        HEAD + CONTENT[:-20],
        b"<html><body><p>404<br></body></html>",
        HEAD + PAGE % b"a < b" + TAIL,
        gzip.compress(HEAD + CONTENT * 100 + TAIL)[:-30],
        gzip.compress(HEAD + CONTENT + TAIL)[:-8] + b"\0" * 8,
        b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 50,
    ]:
        path = tmp_path / f"content.rdf.u8{'.gz' if content[:2] == gzip.compress(b'')[:2] else ''}"
        path.write_bytes(content)
        with pytest.raises(RuntimeError, match=path.name):
            list(read_pages(path))
