// Package page tests the live page against real traffic: what a browser shows is what the
// daemon's document says and what tcpdump counts.
package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/internal/numbers"
	"github.com/scon-project/scon/internal/web"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

func TestMain(m *testing.M) { os.Exit(scontest.Main(m, nil)) }

// serve serves the page of a daemon as "scon web" does.
func serve(t *testing.T, d *scontest.Process) (base, token string) {
	t.Helper()
	s, err := web.Listen("127.0.0.1:0", web.Options{
		Feed: web.Relay(d.Live), Documents: map[string]web.Document{
			"explain": func(_ context.Context, q url.Values) (any, error) { return d.Explain(q.Get("subject")) },
			"history": func(_ context.Context, q url.Values) (any, error) { return api.HistoryFor(d, q) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(ctx) })
	t.Cleanup(func() { cancel(); served.Wait() })
	base, token, _ = strings.Cut(s.URL(), "/#token=")
	return base, token
}

func chromium(t *testing.T) (path string) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("missing: chromium; scripts/install-deps.sh web installs it")
	}
	return path
}

// open starts a browser. It ends with the test, or after two minutes.
func open(t *testing.T, browser string) (page context.Context) {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browser), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	limited, cancelLimit := context.WithTimeout(allocator, 2*time.Minute)
	t.Cleanup(cancelLimit)
	page, cancelPage := chromedp.NewContext(limited)
	t.Cleanup(func() { _ = chromedp.Cancel(page); cancelPage() })
	started := make(chan error)
	go func() { // on a thread that lives as long: the browser is killed with it, and the lab's senders end theirs
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- chromedp.Run(page)
		<-page.Done()
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return page
}

// looks collects what the feed says, until stop.
func looks(t *testing.T, base, token string) (stop func() []live.View) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	var all []live.View
	var done sync.WaitGroup
	done.Go(func() {
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var v live.View
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(text), &v) == nil {
				all = append(all, v)
			}
		}
	})
	stop = sync.OnceValue(func() []live.View { cancel(); done.Wait(); return all })
	t.Cleanup(func() { stop() })
	return stop
}

// dump has tcpdump write the packets of a UDP port on a node's eth0 to a file. count waits
// until there are as many as wanted, and returns their number.
func dump(t *testing.T, b *scontest.Bed, node string, port uint16) (count func(wanted int) int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "packets")
	cmd := exec.Command("nsenter", "--net="+b.Node(node), "tcpdump", "-i", "eth0", "-n", "-U", "--immediate-mode", "-Z", "root", "-w", file, fmt.Sprintf("udp port %d", port))
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if lines := bufio.NewScanner(said); !lines.Scan() { // "listening on eth0"
		t.Fatal("tcpdump does not listen")
	}
	return func(wanted int) (n int) {
		scontest.Eventually(t, "all packets", func() error {
			out, err := exec.Command("tcpdump", "-n", "-r", file).Output()
			if n = bytes.Count(out, []byte("\n")); n < wanted {
				return fmt.Errorf("tcpdump has %d of %d packets: %w", n, wanted, err)
			}
			return nil
		})
		return n
	}
}

func TestPageShowsTraffic(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	if _, err := exec.LookPath("tcpdump"); err != nil {
		t.Skip("missing: tcpdump; scripts/install-deps.sh web installs it")
	}
	b := scontest.NewExpress(t, scontest.Layout{})
	base, token := serve(t, b.Daemon)
	c := b.Incoming("udp", 1)

	page := open(t, browser)
	run := func(actions ...chromedp.Action) {
		t.Helper()
		if err := chromedp.Run(page, actions...); err != nil {
			t.Fatal(err)
		}
	}
	const watch = `globalThis.seen = new Set(); setInterval(() => {
		for (const b of document.querySelectorAll(".cards b.express, .cards b.regular")) seen.add(b.className + " " + b.textContent);
	}, 20); 0`
	run(chromedp.Navigate(base+"/#token="+token), chromedp.WaitVisible("table[aria-label=Containers]"), chromedp.Evaluate(watch, nil))

	ended := looks(t, base, token)
	counted := dump(t, b, lab.Edge, c.Port())
	stream := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	stream.Proceed(t, 3000)
	run(chromedp.Poll(`document.querySelector("table[aria-label=Connections]") !== null`, nil))
	var row string
	run(chromedp.Evaluate(`document.querySelector("table[aria-label=Connections] tbody tr").innerText`, &row))
	if port := fmt.Sprintf(":%d->", c.Port()); !strings.Contains(row, port) || !strings.Contains(row, "in") {
		t.Errorf("the connection's row is %q: want %s, and that it came in", row, port)
	}
	stream.WantAll(t, "of the numbers")

	// At the end nothing is on the way, and a look later everything is told.
	sent := counted(int(stream.Sent.Load()))
	run(chromedp.Poll(`document.querySelector(".cards b.express").textContent === "0/s"`, nil))
	var told float64
	json := make(map[string]bool)
	for _, v := range ended() {
		for _, container := range v.Containers {
			told += v.Seconds * container.Express.Packets
			for reason, n := range container.Reasons {
				if reason != "not_ip" && reason != "not_tcp_udp" { // ARP, ICMPv6
					told += v.Seconds * n
				}
			}
		}
		json["express "+numbers.Count(v.Express.Packets)+"/s"] = true
		json["regular "+numbers.Count(v.Regular)+"/s"] = true
	}
	if math.Abs(told-float64(sent)) > 0.5 {
		t.Errorf("the document tells of %.2f packets, tcpdump of %d", told, sent)
	}
	if sent < 3000 {
		t.Errorf("tcpdump has counted %d packets", sent)
	}
	var seen []string
	run(chromedp.Evaluate(`[...seen]`, &seen))
	for _, text := range seen {
		if !json[text] {
			t.Errorf("the page has shown %q, which the document does not say: %v", text, json)
		}
	}
	if len(seen) < 4 {
		t.Errorf("the page has shown only %q", seen)
	}
}
