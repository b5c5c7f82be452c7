"""The page of a report in a real browser: it loads without errors, curves are switched, numbers are read off."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nl_lightning.cli.main import main
from nl_lightning.core.differences import verdict
from tests.support.page_runs import make

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to open the page in")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=5000",
]

BEFORE = """<script>
window.problems = [];
window.addEventListener("error", (event) => problems.push(`error: ${event.message}`));
document.addEventListener("securitypolicyviolation", (event) => problems.push(`refused: ${event.blockedURI}`));
const complain = console.error;
console.error = (...words) => { problems.push(`console: ${words.join(" ")}`); complain(...words); };
</script>"""

AFTER = """<pre id="probe" hidden></pre><script>
const probe = {};
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const one = (selector, inside = document) => inside.querySelector(selector);
const curve = (k) => all(`[data-measure=regret] .curve[data-entry="${k}"]`);
const displays = (k) => curve(k).map((node) => getComputedStyle(node).display);
const regret = one("[data-measure=regret]"), ctr = one("[data-measure=ctr]");
const key = (k) => one(`.key[data-entry="${k}"]`, regret);
probe.sections = all("section[data-measure]").map((section) => section.dataset.measure);
probe.lines = all(".charts .line").length;

probe.before = displays(1);
key(1).click();
probe.off = displays(1);
probe.otherStays = displays(0);
probe.pressedOff = key(1).getAttribute("aria-pressed");
probe.readoffOff = all(`[data-series=value] .readoff [data-entry="1"]`, regret).length;
key(1).click();
probe.on = displays(1);
probe.pressedOn = key(1).getAttribute("aria-pressed");
one("[data-turn=none]", regret).click();
probe.none = all(".curve", regret).filter((node) => getComputedStyle(node).display !== "none").length;
one("[data-turn=all]", regret).click();
probe.all = all(".curve", regret).filter((node) => getComputedStyle(node).display === "none").length;

const read = (section, series) => ({
  when: one(`[data-series=${series}] .when`, section).textContent,
  values: all(`[data-series=${series}] .readoff [data-entry]`, section).map((row) => one(".value", row).textContent),
  texts: all(`[data-series=${series}] .readoff [data-entry]`, section).map((row) => one(".number", row).textContent),
  cursors: all(`[data-series=${series}] .cursor`, section).length,
});
const chart = (section, series) => one(`[data-series=${series}] .chart`, section);
probe.end = read(regret, "value");
const box = chart(regret, "value").getBoundingClientRect();
chart(regret, "value").dispatchEvent(
  new PointerEvent("pointermove", { clientX: box.left + 0.4 * box.width, clientY: box.top + 50, bubbles: true }));
probe.pointed = read(regret, "value");
probe.elsewhere = read(regret, "radius");
chart(regret, "value").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
probe.stepped = read(regret, "value");
chart(regret, "value").dispatchEvent(new KeyboardEvent("keydown", { key: "Home", bubbles: true }));
probe.home = read(regret, "value");
chart(regret, "value").dispatchEvent(new PointerEvent("pointerleave"));
probe.left = read(regret, "value");

one("[data-series=value] [data-option=each]", ctr).click();
probe.each = read(ctr, "value");
probe.policy = one("[data-series=value] .policy .value", ctr).textContent;
probe.policies = all("path.log", chart(ctr, "value")).length;
one("[data-series=radius] [data-option=log]", ctr).click();
probe.bad = all("path", document).filter((node) => /NaN|Infinity/.test(node.getAttribute("d"))).length;

const column = (place) => all(`.results tbody tr td:nth-child(${place})`, regret).map((cell) => cell.textContent);
one(".results th:nth-child(6) button", regret).click();
probe.ascending = column(6);
one(".results th:nth-child(6) button", regret).click();
probe.descending = column(6);

const select = one(".baseline", regret);
const cells = (row) => all("td", row).map((cell) => cell.textContent);
const verdicts = () => all(".differences tbody tr", regret).map(cells);
const compare = (k) => { select.value = String(k); select.dispatchEvent(new Event("change")); return verdicts(); };
probe.baseline = select.value;
probe.rule = one(".rule-text", regret).textContent;
probe.compared = DATA.sections[0].entries.map((_, k) => compare(k));

const rows = () => all("#configs tbody tr").length;
probe.differing = rows();
one("#differing").click();
probe.everything = rows();
probe.wide = document.documentElement.scrollWidth - window.innerWidth;
const cutOff = (node) => node.scrollWidth > node.clientWidth + 1 && !one(".configs", node);
probe.cut = all(".scroll").filter(cutOff).map((node) => one("table", node).className);
probe.clipped = all(".chart").flatMap((chart) => all("text", chart).filter((text) => {
  const outer = chart.getBoundingClientRect(), inner = text.getBoundingClientRect();
  return inner.right > outer.right + 0.5 || inner.left < outer.left - 0.5; }).map((text) => text.textContent));
probe.ends = read(ctr, "value");
probe.scrolled = all(".scroll").filter((node) => node.scrollWidth > node.clientWidth).length;
probe.images = all("img, link, iframe, script[src]").length;
probe.problems = problems;
one("#probe").textContent = JSON.stringify(probe);
</script>"""


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser")
    make(path / "runs")
    # a name that a careless page would make a picture of
    (path / "runs/h1/two").rename(path / "runs/h1/<img src=x onerror=alert(1)>")
    main(["report", str(path / "runs"), "--out", str(path / "page.html"), "--title", "<b>a title</b>"])
    return path


def opened(page: Path, before: str = BEFORE, after: str = AFTER, width: int = 1200) -> str:
    """The elements of a copy of the page after its script and the probe's have run."""
    assert CHROMIUM is not None
    text = page.read_text().replace("<style>", f"{before}<style>", 1).replace("</body>", f"{after}</body>")
    copy = page.with_name("probed.html")
    copy.write_text(text)
    place = [f"--window-size={width},900", f"--user-data-dir={page.parent / 'profile'}"]
    command = [CHROMIUM, *FLAGS, *place, "--dump-dom", copy.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


@pytest.fixture(scope="module")
def dom(where: Path) -> str:
    return opened(where / "page.html")


def probed(dom: str) -> dict[str, Any]:
    (found,) = re.findall(r'<pre id="probe"[^>]*>(.+?)</pre>', dom, re.DOTALL)
    return json.loads(html.unescape(found))


@pytest.fixture(scope="module")
def probe(dom: str) -> dict[str, Any]:
    return probed(dom)


@pytest.fixture(scope="module")
def data(where: Path) -> dict[str, Any]:
    (found,) = re.findall(r'id="data">(.*?)</script>', (where / "page.html").read_text(), re.DOTALL)
    return json.loads(found)


def shown(value: float | None) -> str:
    """As the page shows a number between 0.0001 and 1000: four digits."""
    return "–" if value is None else f"{float(f'{value:.4g}'):g}" if value else "0"


def test_it_loads_without_errors_and_without_a_network(probe: dict[str, Any], dom: str, data: dict[str, Any]) -> None:
    assert probe["problems"] == []
    assert probe["sections"] == ["regret", "ctr"]
    drawn = sum(len(entry["series"]) for section in data["sections"] for entry in section["entries"])
    assert probe["lines"] == drawn > 20
    assert probe["bad"] == 0
    assert probe["images"] == 0
    assert not re.search(r"""<[^>]+\s(src|href)\s*=\s*["']?https?:""", dom)
    assert "<h1>&lt;b&gt;a title&lt;/b&gt;</h1>" in dom


def test_the_probe_would_see_an_error(where: Path) -> None:
    """The test above can fail: an error and a forbidden address are noticed."""
    broken = """<img src="https://example.invalid/x.png"><script>
        console.error("seen"); setTimeout(() => { throw new Error("thrown"); });
        setTimeout(() => { const p = document.createElement("pre"); p.id = "found"; p.textContent = problems.join("|");
          document.body.append(p); }, 500);</script>"""
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', opened(where / "page.html", after=broken))
    assert "console: seen" in found
    assert "thrown" in found
    assert "refused: https://example.invalid/x.png" in found


def test_a_curve_is_switched_off_and_on(probe: dict[str, Any]) -> None:
    # in all three charts
    assert len(probe["before"]) == 3
    assert "none" not in probe["before"]
    assert probe["off"] == ["none"] * 3
    assert probe["otherStays"] == probe["before"]
    assert (probe["pressedOff"], probe["pressedOn"]) == ("false", "true")
    assert probe["readoffOff"] == 0
    assert probe["on"] == probe["before"]
    assert (probe["none"], probe["all"]) == (0, 0)


def test_numbers_are_read_off(probe: dict[str, Any], data: dict[str, Any]) -> None:
    entries = data["sections"][0]["entries"]
    long = next(k for k, entry in enumerate(entries) if entry["t"][-1] == 500)
    assert probe["end"]["when"] == "at the end, t = 500"
    assert probe["end"]["cursors"] == 0
    assert probe["end"]["values"][long] == shown(entries[long]["series"]["value"]["mean"][-1])
    (t,) = map(int, re.findall(r"^t = (\d+)$", probe["pointed"]["when"]))
    assert 150 < t < 250
    assert probe["pointed"]["cursors"] == 1
    for name in ("value", "radius"):
        read = probe["pointed" if name == "value" else "elsewhere"]
        series, place = entries[long]["series"][name], entries[long]["t"].index(t)
        mean, half = series["mean"][place], series["half"][place]
        assert read["values"][long] == shown(mean)
        low, high = map(float, re.findall(r"\((\S+) to (\S+)\)", read["texts"][long])[0])
        assert (low, high) == pytest.approx((mean - half, mean + half), rel=6e-3)
    # a run of 40 rounds has no value there
    short = next(k for k, entry in enumerate(entries) if entry["t"][-1] == 40)
    assert probe["pointed"]["values"][short] == "–"
    after = entries[long]["t"][entries[long]["t"].index(t) + 1]
    assert probe["stepped"]["when"] == f"t = {after}"
    assert probe["home"]["when"] == "t = 1"
    assert probe["left"] == probe["end"]


def test_reward_per_event_is_the_ctr_and_the_logging_policy_is_beside_it(
    probe: dict[str, Any], data: dict[str, Any]
) -> None:
    assert any(value != "0" for value in probe["each"]["values"])
    for entry, value in zip(data["sections"][1]["entries"], probe["each"]["values"], strict=True):
        assert value == shown(entry["series"]["value"]["mean"][-1] / entry["t"][-1])
    assert probe["policy"] == "0.0038"
    assert probe["policies"] == 1


def test_a_click_on_a_head_sorts(probe: dict[str, Any], data: dict[str, Any]) -> None:
    finals = sorted(entry["final"][0] for entry in data["sections"][0]["entries"] if entry["final"][0] is not None)
    lost = ["–"] * (len(data["sections"][0]["entries"]) - len(finals))
    assert len(lost) == 2
    assert probe["ascending"] == [f"{final:.1f}" for final in finals] + lost
    assert probe["descending"] == [f"{final:.1f}" for final in finals[::-1]] + lost


def test_differences_are_against_the_chosen_baseline(probe: dict[str, Any], data: dict[str, Any]) -> None:
    section = data["sections"][0]
    assert probe["baseline"] == str(section["problems"][0]["baseline"])
    pairs = {(first, second): rest for first, second, *rest in section["pairs"]}
    words = set()
    for base, rows in enumerate(probe["compared"]):
        own = section["entries"][base]["problem"]
        others = [k for k, entry in enumerate(section["entries"]) if entry["problem"] == own and k != base]
        assert [row[0] for row in rows] == [section["entries"][k]["label"] for k in others]
        for k, (_, difference, ends, n, word, needed) in zip(others, rows, strict=True):
            sign = 1 if k < base else -1
            mean, low, high, seeds, of_second, of_first = pairs[min(k, base), max(k, base)]
            takes = of_second if sign == 1 else of_first
            words.add(word)
            assert n == str(seeds)
            assert needed == ("" if takes is None else f"{int(float(f'{takes:.2g}')):,}")
            if low is None:
                assert ends == "–"
                assert word == "cannot tell"
                continue
            assert float(difference) == pytest.approx(sign * mean, abs=0.051)
            turned = sorted((sign * low, sign * high))
            assert [float(end) for end in ends.split(" to ")] == pytest.approx(turned, abs=0.051)
            # the rule of the terminal: of regret less is better
            assert word == verdict(turned[0], turned[1], better=-1)
    assert {"cannot tell", "better", "worse"} <= words
    assert probe["rule"].startswith(section["problems"][0]["rule"])


def test_configs_show_what_differs_and_then_all(probe: dict[str, Any], data: dict[str, Any]) -> None:
    assert probe["differing"] == sum(row["differs"] for row in data["configs"])
    assert probe["everything"] == len(data["configs"]) > probe["differing"]


def test_in_a_narrow_window_tables_scroll_and_not_the_page(where: Path, probe: dict[str, Any]) -> None:
    narrow = probed(opened(where / "page.html", width=500))
    assert narrow["problems"] == []
    assert narrow["wide"] <= 0
    assert probe["wide"] <= 0
    # only configs may be wider than the window: the others become lists
    assert probe["cut"] == narrow["cut"] == []


def test_at_the_end_every_curve_has_its_last_number(probe: dict[str, Any], data: dict[str, Any]) -> None:
    assert "–" not in probe["ends"]["values"]
    assert len(probe["ends"]["values"]) == len(data["sections"][1]["entries"])
    # the curves of settings that diverged have no number at all
    lost = [entry["series"] == {} for entry in data["sections"][0]["entries"]]
    assert [value == "–" for value in probe["end"]["values"]] == lost


def test_a_curve_that_ended_earlier_is_read_off_at_its_end(where: Path) -> None:
    """Its mean is known until its first seed ends. Nor are the long numbers at the axes of a long run clipped."""
    page = where / "page.html"
    (found,) = re.findall(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    changed = json.loads(found)
    for each in (each for section in changed["sections"] for each in section["entries"]):
        each["t"] = [1000 * t for t in each["t"]]
    entry = changed["sections"][1]["entries"][0]
    for series in entry["series"].values():
        for values in filter(None, series.values()):
            values[-50:] = [None] * 50
    short = where / "short.html"
    short.write_text(page.read_text().replace(found, json.dumps(changed).replace("<", "\\u003c")))
    probe = probed(opened(short))
    assert probe["problems"] == []
    assert "–" not in probe["ends"]["values"]
    assert f"at t = {entry['t'][-51]}" in probe["ends"]["texts"][0]
    assert probe["clipped"] == []
