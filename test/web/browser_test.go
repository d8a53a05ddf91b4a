package web_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
)

// browser returns a Chromium that shows the page of a daemon, and ends the page's server.
func browser(t *testing.T, d *daemon) (page context.Context, end func()) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("missing: chromium; scripts/install-deps.sh web installs it")
	}
	s, end := listen(t, "127.0.0.1:0", d, 100*time.Millisecond)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	limited, cancelLimit := context.WithTimeout(allocator, 2*time.Minute)
	t.Cleanup(cancelLimit)
	page, cancelPage := chromedp.NewContext(limited)
	t.Cleanup(func() {
		_ = chromedp.Cancel(page) // waits for the browser's end
		cancelPage()
	})
	if err := chromedp.Run(page, chromedp.EmulateViewport(1200, 1000), chromedp.Navigate(s.URL()), chromedp.Poll(`document.querySelector("table[aria-label=Connections]") !== null`, nil)); err != nil {
		t.Fatal(err)
	}
	return page, end
}

// text returns the text of the page.
func text(t *testing.T, page context.Context) (s string) {
	t.Helper()
	if err := chromedp.Run(page, chromedp.Evaluate(`document.body?.innerText || ""`, &s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// wantText waits until the page has a text.
func wantText(t *testing.T, page context.Context, want string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(text(t, page), want); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the page has no %q: %s", want, text(t, page))
		}
	}
}

func run(t *testing.T, page context.Context, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(page, actions...); err != nil {
		t.Fatal(err)
	}
}

const rows = `document.querySelectorAll("table[aria-label=Connections] tbody tr:not(.space)")`

// The page in a real browser: what it shows, hostile names, sorting, filtering, windows.
func TestBrowser(t *testing.T) {
	t.Parallel()
	page, _ := browser(t, &daemon{})

	wantText(t, page, "live")
	wantText(t, page, "Connections 1000")
	wantText(t, page, "<script>alert(1)</script>") // a name, as text
	wantText(t, page, "db (paused)")
	wantText(t, page, "connections that a rule that judges single packets may touch")
	wantText(t, page, "of one CPU: ")
	wantText(t, page, "rules changed: nftables generation")
	var scripts, shown, overflow int
	var address string
	run(t, page,
		chromedp.Evaluate(`document.scripts.length`, &scripts),
		chromedp.Evaluate(rows+`.length`, &shown),
		chromedp.Evaluate(`document.documentElement.scrollWidth - innerWidth`, &overflow),
		chromedp.Location(&address))
	if scripts != 2 || shown != 200 || overflow > 0 {
		t.Errorf("%d scripts, want 2; %d rows, want the 200 of a window; %d pixels too wide", scripts, shown, overflow)
	}
	if strings.Contains(address, "token") {
		t.Errorf("the address bar has %s", address)
	}

	// Rows far down are fetched when they come into sight.
	run(t, page, chromedp.Evaluate(`document.querySelector("table[aria-label=Connections]").parentElement.scrollTop = 28 * 600`, nil))
	run(t, page, chromedp.Poll(`[...document.querySelectorAll("table[aria-label=Connections] td")].some((c) => c.textContent.includes(":1600->"))`, nil))

	// Every column sorts.
	var columns []string
	run(t, page, chromedp.Evaluate(`[...document.querySelectorAll("th button")].map((b) => b.closest("table").getAttribute("aria-label") + "/" + b.textContent)`, &columns))
	if len(columns) != 9+14 {
		t.Errorf("columns that sort: %v", columns)
	}
	for i := range columns {
		button := fmt.Sprintf(`document.querySelectorAll("th button")[%d]`, i)
		run(t, page, chromedp.Evaluate(button+`.click()`, nil), chromedp.Poll(button+`.closest("th").ariaSort !== null`, nil))
	}
	run(t, page, chromedp.Evaluate(`document.querySelectorAll("th button")[9 + 11].click()`, nil)) // the oldest first
	run(t, page, chromedp.Poll(rows+`[0].textContent.includes(":1999->")`, nil))
	if s := text(t, page); strings.Contains(s, "there is no such order") {
		t.Error(s)
	}

	// Filtering and explaining, by keyboard alone.
	run(t, page, chromedp.Focus(`input`), chromedp.SendKeys(`input`, "peer:172.17.0.2:150 direction:in"))
	wantText(t, page, "5 of 1000")
	run(t, page, chromedp.SendKeys(`input`, " pear:x"))
	wantText(t, page, `there is no key "pear"`)
	run(t, page, chromedp.Evaluate(`document.querySelector("input").select()`, nil), chromedp.SendKeys(`input`, "172.17.0.2:1000-"))
	wantText(t, page, "1 of 1000")
	run(t, page, chromedp.Focus(`table[aria-label=Connections] tbody tr:not(.space)`, chromedp.ByQuery), chromedp.KeyEvent("\r"))
	wantText(t, page, "it goes express")
	wantText(t, page, "it judges single packets, by limit\nlimit rate 1/s <b>\nhandle 7; nft -a list chain ip filter FORWARD shows it in its place")
	run(t, page, chromedp.WaitVisible(`svg[aria-label="Packets skip bridge, IP, Netfilter, route, NAT"]`))
	run(t, page, chromedp.Evaluate(`document.querySelector(".profile button").click()`, nil), chromedp.WaitVisible(`dialog[open] img`), chromedp.KeyEvent("\x1b"))
	run(t, page, chromedp.WaitNotVisible(`dialog img`), chromedp.Evaluate(`document.querySelector("aside header button").click()`, nil), chromedp.WaitNotPresent(`aside`))
	run(t, page, chromedp.SendKeys(`input[name=subject]`, "gone\r"))
	wantText(t, page, `No explanation: no container "gone"`)
}

// Of 10,000 connections the page has the rows of one window, wherever it is scrolled to.
func TestManyRows(t *testing.T) {
	t.Parallel()
	const most = 200 // rows of a window
	page, _ := browser(t, &daemon{connections: 10000})
	wantText(t, page, "Connections 10000")
	const table = `document.querySelector("table[aria-label=Connections]")`
	// The most rows that the page has had, updates of it, and the longest time without a frame.
	run(t, page, chromedp.Evaluate(`(() => {
		window.seen = { rows: 0, updates: 0, gap: 0, at: performance.now() };
		new MutationObserver(() => { seen.updates++; seen.rows = Math.max(seen.rows, `+rows+`.length); }).observe(document.body, { childList: true, subtree: true, characterData: true });
		const frame = (now) => { seen.gap = Math.max(seen.gap, now - seen.at); seen.at = now; requestAnimationFrame(frame); };
		requestAnimationFrame(frame);
	})()`, nil))
	before := taskSeconds(t, page)

	inSight := func(port int) {
		t.Helper()
		run(t, page, chromedp.Poll(fmt.Sprintf(`(() => {
			const box = %s.parentElement.getBoundingClientRect();
			return [...%s].some((r) => { const is = r.getBoundingClientRect(); return r.textContent.includes(":%d->") && is.top < box.bottom && is.bottom > box.top; });
		})()`, table, rows, port), nil))
	}
	sort := func(column string) {
		t.Helper()
		run(t, page, chromedp.Evaluate(`[...`+table+`.querySelectorAll("th button")].find((b) => b.textContent.startsWith("`+column+`")).click()`, nil))
	}
	sort("Age") // the oldest first: it has the highest port
	inSight(10999)
	for _, row := range []int{9990, 5000, 120, 7777, 0} {
		run(t, page, chromedp.Evaluate(fmt.Sprintf(table+`.parentElement.scrollTop = 28 * %d`, row), nil))
		inSight(10999 - row)
	}
	for range 40 { // as one who turns the wheel without waiting for rows
		run(t, page, chromedp.Evaluate(table+`.parentElement.scrollBy(0, 28 * 200)`, nil))
	}
	inSight(10999 - 40*200)
	sort("Age") // now the youngest first, from the top
	inSight(1000)
	run(t, page, chromedp.SendKeys(`input`, "peer:172.17.0.2:107"))
	wantText(t, page, "110 of 10000")
	inSight(1070)

	var seen struct{ Rows, Updates, Gap float64 }
	run(t, page, chromedp.Evaluate(`({ rows: seen.rows, updates: seen.updates, gap: seen.gap })`, &seen))
	if seen.Rows > most || seen.Rows < most/2 {
		t.Errorf("the page had up to %v rows, want %d", seen.Rows, most)
	}
	t.Logf("%v updates, each %.1f ms of the page's thread; the longest time without a frame %.0f ms",
		seen.Updates, 1000*(taskSeconds(t, page)-before)/seen.Updates, seen.Gap)
}

// taskSeconds is the time that the page's thread has worked.
func taskSeconds(t *testing.T, page context.Context) (seconds float64) {
	t.Helper()
	run(t, page, performance.Enable(), chromedp.ActionFunc(func(ctx context.Context) error {
		metrics, err := performance.GetMetrics().Do(ctx)
		for _, m := range metrics {
			if m.Name == "TaskDuration" {
				seconds = m.Value
			}
		}
		return err
	}))
	return seconds
}

// Sections ask for what they show when they are opened.
func TestSections(t *testing.T) {
	t.Parallel()
	page, _ := browser(t, &daemon{})
	wantText(t, page, "rule inet filter forward handle 9 judges single packets")
	if s := text(t, page); strings.Contains(s, "no startup service answers") {
		t.Error("a closed section has asked")
	}
	run(t, page, chromedp.Evaluate(`document.querySelectorAll("details").forEach((d) => { d.open = true; })`, nil))
	wantText(t, page, "no startup service answers")
	wantText(t, page, "No connections of the pipe.")
	wantText(t, page, "of 2 processes")
	wantText(t, page, "without it: clsact")
}

// The page looks as the system does, and fits on a phone.
func TestLooks(t *testing.T) {
	t.Parallel()
	page, _ := browser(t, &daemon{})
	var back string
	dark := emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}})
	run(t, page, dark, chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &back))
	if back != "rgb(13, 17, 23)" {
		t.Errorf("the background is %s where dark is preferred", back)
	}
	run(t, page, chromedp.EmulateViewport(390, 844))
	run(t, page, chromedp.Evaluate(`document.querySelectorAll("details").forEach((d) => { d.open = true; })`, nil))
	run(t, page, chromedp.Click(`table[aria-label=Connections] tbody tr:not(.space)`, chromedp.ByQuery), chromedp.WaitVisible("aside dl"))
	run(t, page, chromedp.Poll(`document.documentElement.scrollWidth <= 390`, nil))

	// What a screen reader needs: names of buttons, fields, tables and pictures.
	var nameless []string
	run(t, page, chromedp.Evaluate(`[...document.querySelectorAll("button, input, table, [role=img], img, aside, dialog")].filter((e) => !e.parentElement.closest("[role=img]") &&
		!(e.textContent.trim() && e.localName === "button") && !e.ariaLabel && !e.alt && !(e.labels && e.labels.length)).map((e) => e.outerHTML.slice(0, 80))`, &nameless))
	if len(nameless) > 0 {
		t.Errorf("without names: %q", nameless)
	}
	for _, scheme := range []string{"light", "dark"} {
		var faint []string
		run(t, page, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}), chromedp.Evaluate(faintTexts, &faint))
		if len(faint) > 0 {
			t.Errorf("%s: contrast below 4.5: %q", scheme, faint)
		}
	}
}

// faintTexts lists texts whose contrast to what is behind them is below 4.5, that of WCAG AA.
const faintTexts = `(() => {
	const rgb = (c) => c.match(/[\d.]+/g).map(Number);
	const light = (c) => { const [r, g, b] = rgb(c).map((v) => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return getComputedStyle(document.body).backgroundColor; };
	return [...document.querySelectorAll("body *")].filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && e.checkVisibility() && !(e instanceof SVGElement))
		.filter((e) => { const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort(); return (b + 0.05) / (a + 0.05) < 4.5; })
		.map((e) => e.localName + "." + e.className + " " + e.textContent.slice(0, 30));
})()`

// Every state of the page is said.
func TestStates(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	page, end := browser(t, d)
	status := func(want string) {
		t.Helper()
		run(t, page, chromedp.Poll(fmt.Sprintf(`document.querySelector("[role=status]").textContent === %q`, want), nil))
	}
	status("live")
	run(t, page, chromedp.Click(`header button`))
	status("frozen")
	time.Sleep(300 * time.Millisecond) // the last look
	asked := d.asked.Load()
	time.Sleep(500 * time.Millisecond)
	if more := d.asked.Load() - asked; more > 0 {
		t.Errorf("the daemon was asked %d times while the page is frozen", more)
	}
	run(t, page, chromedp.Click(`header button`))
	status("live")
	d.paused.Store(true)
	wantText(t, page, "SCON is paused: every packet goes regular.")
	d.paused.Store(false)
	d.empty.Store(true)
	wantText(t, page, "No containers yet")
	wantText(t, page, "No connections: a connection becomes a candidate")
	wantText(t, page, "No packet of a container went regular")
	d.empty.Store(false)
	d.down.Store(true)
	wantText(t, page, "No answer: no daemon answers")
	status("no answer")
	d.down.Store(false)
	status("live")
	end()
	wantText(t, page, "No connection: the server of this page does not answer")
	status("disconnected")
}

// Without the token, and after its server has been started again, the page says what to do.
func TestLocked(t *testing.T) {
	t.Parallel()
	page, _ := browser(t, &daemon{})
	run(t, page, chromedp.Evaluate(`sessionStorage.clear()`, nil), chromedp.Reload())
	wantText(t, page, "This page shows nothing without its token.")
	if s := text(t, page); strings.Contains(s, "web") && strings.Contains(s, "172.17.0.2") || strings.Contains(s, "Asking the daemon") {
		t.Errorf("it shows %s", s)
	}
}
