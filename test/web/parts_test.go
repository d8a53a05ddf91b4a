package web_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// saved has the page's exports stay in the page: globalThis.saved is the text of the latest.
const saved = `HTMLAnchorElement.prototype.click = function () { };
	URL.createObjectURL = (blob) => { blob.text().then((t) => { globalThis.saved = t; }); return "blob:none"; }; 0`

// save clicks a button of an export and returns the file.
func save(t *testing.T, page context.Context, label string) (text string) {
	t.Helper()
	run(t, page, chromedp.Evaluate(`globalThis.saved = undefined`, nil), chromedp.Click(fmt.Sprintf(`button[aria-label=%q]`, label), chromedp.ByQuery),
		chromedp.Poll(`globalThis.saved`, &text))
	return text
}

// The files have all rows, not only those that the page has, and no name is a formula.
func TestExport(t *testing.T) {
	t.Parallel()
	d := &daemon{connections: 3000}
	d.names = []string{`=HYPERLINK("http://x","y")`, "+1", "-1", "@SUM(1)", "\t=1", ` =1`, "a,b\"c\nd", "web"}
	page, _ := browser(t, d)
	run(t, page, chromedp.Evaluate(saved, nil))
	wantText(t, page, "Connections 3000")

	read := func(label string) (rows []map[string]string) {
		t.Helper()
		all, err := csv.NewReader(strings.NewReader(save(t, page, label))).ReadAll()
		if err != nil || len(all) == 0 {
			t.Fatalf("%s: %v, %d lines", label, err, len(all))
		}
		for _, line := range all[1:] {
			row := make(map[string]string)
			for i, name := range all[0] {
				row[name] = line[i]
				if strings.ContainsAny(line[i][:min(1, len(line[i]))], "=+-@\t\r ") {
					t.Errorf("%s: %s begins as a formula: %q", label, name, line[i])
				}
			}
			rows = append(rows, row)
		}
		return rows
	}
	connections := read("Save connections as CSV")
	if len(connections) != 3000 || connections[0]["orig.dst"] != "10.0.0.1" || connections[0]["express.0.packets_per_s"] == "" {
		t.Errorf("%d connections, the first %v", len(connections), connections[0])
	}
	seen := make(map[string]bool)
	for _, c := range connections {
		seen[strings.TrimPrefix(c["container"], "'")] = true
	}
	for _, name := range d.names {
		if !seen[name] {
			t.Errorf("no connection of %q", name)
		}
	}
	if rows := read("Save containers as CSV"); len(rows) != 2 || rows[1]["image"] != "postgres:17" && rows[0]["image"] != "postgres:17" {
		t.Errorf("containers: %v", rows)
	}
	if rows := read("Save history as CSV"); len(rows) != 360 || rows[1]["express_packets"] != "1000" {
		t.Errorf("history: %d rows", len(rows))
	}
	read("Save by-peer as CSV")
	var list []map[string]any
	if err := json.Unmarshal([]byte(save(t, page, "Save connections as JSON")), &list); err != nil || len(list) != 3000 || list[0]["proto"] != "udp" {
		t.Errorf("JSON: %v, %d connections", err, len(list))
	}
	run(t, page, chromedp.SendKeys(`input`, "peer:172.17.0.2:150"))
	wantText(t, page, "10 of 3000")
	if rows := read("Save connections as CSV"); len(rows) != 10 {
		t.Errorf("%d connections that the filter selects", len(rows))
	}
}

// Names in the map and in the totals are text, however long they are and whatever they
// say, and do not widen the page. A click on one filters by it.
func TestMap(t *testing.T) {
	t.Parallel()
	const markup, rtl = `<img/src=x/onerror=alert(1)>`, "\u202eevil\u05d0"
	d := &daemon{names: []string{markup, rtl, strings.Repeat("long", 100)}}
	page, _ := browser(t, d)
	const picture = `document.querySelector("svg[aria-label^='Who talks']")`
	run(t, page, chromedp.Poll(picture+` !== null`, nil))
	var texts []string
	var foreign, overflow, links int
	run(t, page, chromedp.Evaluate(`[...`+picture+`.querySelectorAll("text")].map((e) => e.textContent)`, &texts),
		chromedp.Evaluate(`document.querySelectorAll("img").length`, &foreign),
		chromedp.Evaluate(picture+`.querySelectorAll(":scope > path").length`, &links),
		chromedp.Evaluate(`document.documentElement.scrollWidth - innerWidth`, &overflow))
	if len(texts) != 3+2 || foreign > 0 || overflow > 0 || links != 3*2 || !strings.Contains(strings.Join(texts, "|"), markup) {
		t.Errorf("texts %q, %d pictures, %d links, %d pixels too wide", texts, foreign, links, overflow)
	}
	for _, text := range texts {
		if len([]rune(text)) > 30 {
			t.Errorf("%q is too long", text)
		}
	}
	wantText(t, page, "By port")
	wantText(t, page, "udp/53")
	run(t, page, chromedp.Evaluate(`[...`+picture+`.querySelectorAll("g.node")].find((e) => e.textContent.includes("img")).dispatchEvent(new MouseEvent("click", { bubbles: true }))`, nil))
	wantText(t, page, "334 of 1000")
}

// The charts begin before the page was opened, show a part when it is dragged over, and
// end that again.
func TestPast(t *testing.T) {
	t.Parallel()
	page, _ := browser(t, &daemon{})
	const clocks = `document.querySelector("figure .u-legend .u-value").textContent`
	run(t, page, chromedp.Evaluate(`[...document.querySelectorAll(".times button")].find((b) => b.textContent === "1 h").click()`, nil))
	var captions []string
	run(t, page, chromedp.Evaluate(`[...document.querySelectorAll("figcaption")].map((e) => e.textContent)`, &captions))
	if strings.Join(captions, "|") != "Packets per second|Bytes per second|Processor time, of one CPU" {
		t.Errorf("charts: %q", captions)
	}
	// Where the pointer is over the chart's left end is a time long ago.
	const over = `(() => { const o = document.querySelector(".u-over"), r = o.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()`
	var box [4]float64
	var atStart, atEnd string
	run(t, page, chromedp.WaitVisible(".u-over", chromedp.ByQuery), chromedp.Evaluate(over, &box))
	mouse := func(kind input.MouseType, x float64) chromedp.Action {
		return chromedp.MouseEvent(kind, x, box[1]+box[3]/2, chromedp.ButtonLeft, chromedp.ClickCount(1))
	}
	// Without a pointer the chart shows the latest time, which goes on.
	pointed := func(share float64, text *string) {
		t.Helper()
		run(t, page, mouse(input.MouseMoved, box[0]+share*box[2]), chromedp.Poll(fmt.Sprintf(`(() => {
			const shown = %s, [h, m, s] = shown.split(":").map(Number), now = new Date();
			const ago = (now.getHours() - h) * 3600 + (now.getMinutes() - m) * 60 + now.getSeconds() - s;
			return Math.abs((ago + 86400) %% 86400 / 3600 - %g) < 0.15 && shown;
		})()`, clocks, 1-share), text))
	}
	pointed(0.3, &atStart)
	pointed(0.95, &atEnd)
	from, err1 := time.Parse(time.TimeOnly, atStart)
	to, err2 := time.Parse(time.TimeOnly, atEnd)
	if span := (to.Sub(from) + 24*time.Hour) % (24 * time.Hour); err1 != nil || err2 != nil || span < 30*time.Minute || span > 50*time.Minute {
		t.Errorf("the chart shows %q and %q", atStart, atEnd)
	}
	run(t, page, mouse(input.MousePressed, box[0]+0.2*box[2]), mouse(input.MouseMoved, box[0]+0.6*box[2]),
		chromedp.Poll(`document.querySelector(".u-select").offsetWidth > 10`, nil), chromedp.Sleep(time.Second), mouse(input.MouseReleased, box[0]+0.6*box[2]))
	wantText(t, page, "two clicks end the zoom")
	run(t, page, chromedp.Evaluate(`document.querySelector("figure > div").dispatchEvent(new MouseEvent("dblclick", { bubbles: true }))`, nil))
	wantText(t, page, "drag over a chart to zoom")

	// A container has charts of its own.
	run(t, page, chromedp.Click(`table[aria-label=Containers] tbody tr:not(.space)`, chromedp.ByQuery), chromedp.WaitVisible(`aside .past figure`))
	run(t, page, chromedp.Poll(`document.querySelector("aside .past [role=img]").ariaLabel.includes("regular 5")`, nil))
	if s := text(t, page); !strings.Contains(s, "db (paused) shop/db, postgres:17") {
		t.Errorf("no image and service beside the name: %s", s)
	}
}

// A daemon that hangs is no active one, and there is a gap in the charts afterwards.
func TestHang(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	page, _ := browser(t, d)
	wantText(t, page, "express is active")
	d.hang.Lock()
	run(t, page, chromedp.Poll(`document.querySelector("[role=status]").textContent === "no answer"`, nil))
	wantText(t, page, "No answer: the daemon has said nothing for 4 s")
	wantText(t, page, "express was active")
	var green, old bool
	run(t, page, chromedp.Evaluate(`document.querySelector("header .express") !== null`, &green), chromedp.Evaluate(`document.querySelector("main").className === "old"`, &old))
	if green || !old {
		t.Errorf("green %v, grey %v", green, old)
	}
	d.hang.Unlock()
	wantText(t, page, "express is active")
	// Between the last look before and the first one after there is a point without values.
	run(t, page, chromedp.Poll(`document.querySelectorAll("figure [data-gaps]").length > 0 && [...document.querySelectorAll("figure [data-gaps]")].every((e) => e.dataset.gaps >= 1)`, nil))
}

// At 1280 pixels every column is in sight, with an explanation and without one. On a phone
// an explanation opens below the table that it was asked for in, where it is in sight.
func TestWidths(t *testing.T) {
	t.Parallel()
	page, _ := browser(t, &daemon{names: []string{"a-project-of-many-words-web-1"}})
	const cut = `[...document.querySelectorAll(".rows")].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.firstChild.ariaLabel + " " + (e.scrollWidth - e.clientWidth))`
	whole := func(when string) {
		t.Helper()
		var tables []string
		if run(t, page, chromedp.Evaluate(cut, &tables)); len(tables) > 0 {
			t.Errorf("%s columns are cut: %q", when, tables)
		}
	}
	run(t, page, chromedp.EmulateViewport(1280, 900))
	whole("at 1280 pixels")
	run(t, page, chromedp.Click(`table[aria-label=Connections] tbody tr:not(.space)`, chromedp.ByQuery), chromedp.WaitVisible("aside dl"))
	whole("beside an explanation")
	run(t, page, chromedp.EmulateViewport(390, 844))
	for _, table := range []string{"Containers", "Connections"} {
		run(t, page, chromedp.Click(fmt.Sprintf(`table[aria-label=%s] tbody tr:not(.space)`, table), chromedp.ByQuery), chromedp.WaitVisible("aside .verdict, aside .bad"))
		run(t, page, chromedp.Poll(fmt.Sprintf(`(() => {
			const panel = document.querySelector("aside"), table = document.querySelector("table[aria-label=%s]").parentElement;
			const at = panel.getBoundingClientRect();
			return panel.compareDocumentPosition(table) === 2 && at.top < innerHeight - 100 && at.bottom > 0 && at.top - table.getBoundingClientRect().bottom < 200;
		})()`, table), nil))
	}
}

// What the columns say where something is missing is said beneath, and nothing is recommended about very
// few packets.
func TestWords(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	page, _ := browser(t, d)
	wantText(t, page, "Peer outside: the other end is no container of this daemon.")
	wantText(t, page, "Regular/s unknown: conntrack does not count this connection's packets")
	s := text(t, page)
	if strings.Contains(s, "What to do: explain the container") {
		t.Error("something is recommended about 0.5 % of the packets")
	}
	if strings.Contains(s, "Asking the daemon") {
		t.Error("the page still asks the daemon")
	}
	d.few.Store(true)
	wantText(t, page, "What to do: explain the container")
}

// The sum of the reasons is what the tile and the container say; the uplinks' are apart.
func TestOneSum(t *testing.T) {
	t.Parallel()
	page, _ := browser(t, &daemon{})
	run(t, page, chromedp.Poll(`(() => {
		const tile = document.querySelector(".cards b.regular").textContent, reasons = [...document.querySelectorAll(".reasons b")].map((b) => b.textContent);
		return tile !== "0/s" && reasons.length === 1 && reasons[0] === tile && document.body.innerText.includes("Together " + tile);
	})()`, nil))
	wantText(t, page, "At the uplinks, where these packets pass again and the host's own do, too: not_ip")
}
