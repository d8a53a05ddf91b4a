package web_test

import (
	"context"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/scon-project/scon/internal/web"
)

// browser returns a Chromium that shows the page of a daemon, and ends the page's server.
func browser(t *testing.T, d *daemon) (page context.Context, end func()) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("missing: chromium; scripts/install-deps.sh web installs it")
	}
	s, err := web.New("127.0.0.1:0", d, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	go func() { _ = s.Serve(ctx) }()
	t.Cleanup(end)
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
	if err := chromedp.Run(page, chromedp.EmulateViewport(1200, 1000), chromedp.Navigate(s.URL()), chromedp.WaitVisible("table")); err != nil {
		t.Fatal(err)
	}
	return page, end
}

// text returns the text of the page.
func text(t *testing.T, page context.Context) (s string) {
	t.Helper()
	if err := chromedp.Run(page, chromedp.Evaluate(`document.body.innerText`, &s)); err != nil {
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

// The page in a real browser: what it shows, a hostile name, and its states.
func TestBrowser(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	page, end := browser(t, d)

	wantText(t, page, "live")
	wantText(t, page, "Connections 1000")
	wantText(t, page, "<script>alert(1)</script>") // a name, as text
	var scripts, rows, overflow int
	var address string
	run(t, page,
		chromedp.Evaluate(`document.scripts.length`, &scripts),
		chromedp.Evaluate(`document.querySelectorAll("table[aria-label=Connections] tbody tr:not(.space)").length`, &rows),
		chromedp.Evaluate(`document.documentElement.scrollWidth - innerWidth`, &overflow),
		chromedp.Location(&address))
	if scripts != 2 || rows != 200 || overflow > 0 {
		t.Errorf("%d scripts, want 2; %d rows, want the 200 of a window; %d pixels too wide", scripts, rows, overflow)
	}
	if u, err := url.Parse(address); err != nil || u.RawQuery != "" {
		t.Errorf("the address bar has %s: the token is in the history", address)
	}

	// Rows far down are fetched when they come into sight.
	run(t, page, chromedp.Evaluate(`document.querySelector("table[aria-label=Connections]").parentElement.scrollTop = 28 * 600`, nil))
	run(t, page, chromedp.Poll(`[...document.querySelectorAll("table[aria-label=Connections] td")].some((c) => c.textContent.includes(":1600->"))`, nil))

	// Sorting and filtering, by keyboard alone.
	run(t, page, chromedp.Focus(`input`), chromedp.SendKeys(`input`, "peer:172.17.0.2:150"))
	wantText(t, page, "10 of 1000")
	run(t, page, chromedp.SendKeys(`input`, " pear:x"))
	wantText(t, page, `there is no key "pear"`)
	run(t, page, chromedp.Evaluate(`document.querySelector("input").select()`, nil), chromedp.SendKeys(`input`, "web"))
	run(t, page, chromedp.Poll(`document.querySelector("table[aria-label=Connections] td:nth-child(3)").textContent.includes(":1000->")`, nil))
	run(t, page, chromedp.Focus(`table[aria-label=Connections] tbody tr:not(.space)`, chromedp.ByQuery), chromedp.KeyEvent("\r"))
	wantText(t, page, "ok: it goes express")
	run(t, page, chromedp.WaitVisible(`svg[aria-label="Packets skip bridge, IP, Netfilter, route, NAT"]`))
	var back string
	run(t, page, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}),
		chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &back))
	if back != "rgb(13, 17, 23)" {
		t.Errorf("the background is %s where dark is preferred", back)
	}
	run(t, page, chromedp.EmulateViewport(390, 844))
	run(t, page, chromedp.Poll(`document.documentElement.scrollWidth <= 390`, nil))

	// Its states.
	run(t, page, chromedp.Click(`header button`))
	wantText(t, page, "paused")
	asked := d.asked.Load()
	time.Sleep(500 * time.Millisecond)
	if more := d.asked.Load() - asked; more > 2 {
		t.Errorf("the daemon was asked %d times while the page is paused", more)
	}
	run(t, page, chromedp.Click(`header button`))
	wantText(t, page, "live")
	d.down.Store(true)
	wantText(t, page, "The daemon does not answer: no daemon answers")
	d.down.Store(false)
	wantText(t, page, "live")
	end()
	wantText(t, page, `The connection to "scon web" is lost`)
}
