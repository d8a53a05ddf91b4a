package web_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/cookiejar"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/web"
)

// daemon has 1,000 connections, and counts what it is asked.
type daemon struct {
	asked atomic.Int64
	down  atomic.Bool
}

func (d *daemon) Status() (api.Status, error) {
	n := uint64(d.asked.Add(1))
	if d.down.Load() {
		return api.Status{}, errors.New("no daemon answers")
	}
	return api.Status{
		State: api.StateActive, PID: 7,
		Containers: []api.Container{{Name: "<script>alert(1)</script>", ID: "4f2a", Dev: "veth1", RegularPackets: n}},
		Totals:     api.Totals{Entries: 1000, ExpressPackets: 1000 * n},
	}, nil
}

func (d *daemon) Flows(string) ([]api.Flow, error) {
	flows := make([]api.Flow, 1000)
	for i := range flows {
		flows[i] = api.Flow{
			Container: "web", Proto: "udp", Path: "wire", State: "express", AgeMS: int64(i),
			Orig: api.Tuple{Src: "172.17.0.2", Sport: uint16(1000 + i), Dst: "10.0.0.1", Dport: 53},
		}
	}
	return flows, nil
}

func (d *daemon) Explain(subject string) (api.Explanation, error) {
	if subject == "gone" {
		return api.Explanation{}, errors.New("no container \"gone\"")
	}
	return api.Explanation{Subject: subject, Express: true, Findings: []api.Finding{{Level: "ok", What: "it goes express"}}}, nil
}

// serve runs a server until the test ends. The client has opened the page with its token.
func serve(t *testing.T, d *daemon) (base string, client *http.Client) {
	t.Helper()
	s, err := web.New("127.0.0.1:0", d, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client = &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	base, _, _ = strings.Cut(s.URL(), "/?")
	if code, body := get(t, client, s.URL(), nil); code != http.StatusOK || !strings.Contains(body, "<title>SCON</title>") {
		t.Fatalf("the page: %d: %s", code, body)
	}
	return base, client
}

func get(t *testing.T, c *http.Client, url string, change func(*http.Request)) (code int, body string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if csp := resp.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("%s: content security policy %q", url, csp)
	}
	return resp.StatusCode, string(b)
}

// Who has not the token, or comes from another site or by another name, sees nothing.
func TestGuard(t *testing.T) {
	t.Parallel()
	base, client := serve(t, &daemon{})
	stranger := &http.Client{}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for _, path := range []string{"/", "/app.js", "/events", "/explain?subject=web", "/reasons", "/filter"} {
		for what, c := range map[string]struct {
			client *http.Client
			change func(*http.Request)
			want   int
		}{
			"no token":               {stranger, nil, http.StatusUnauthorized},
			"another token":          {stranger, header("Cookie", "scon_token=AAAAAAAAAAAAAAAAAAAAAA"), http.StatusUnauthorized},
			"an empty token":         {stranger, header("Cookie", "scon_token="), http.StatusUnauthorized},
			"another name":           {client, func(r *http.Request) { r.Host = "attacker.example:9478" }, http.StatusForbidden},
			"the name without port":  {client, func(r *http.Request) { r.Host = "127.0.0.1" }, http.StatusForbidden},
			"another origin":         {client, header("Origin", "http://attacker.example"), http.StatusForbidden},
			"no origin, as by file:": {client, header("Origin", "null"), http.StatusForbidden},
			"another port's origin":  {client, header("Origin", "http://127.0.0.1:1"), http.StatusForbidden},
			"a request to change":    {client, func(r *http.Request) { r.Method = http.MethodPost }, http.StatusMethodNotAllowed},
		} {
			if code, body := get(t, c.client, base+path, c.change); code != c.want || strings.Contains(body, "title") {
				t.Errorf("%s, %s: %d %q, want %d", path, what, code, body, c.want)
			}
		}
		if path == "/" {
			continue
		}
		if code, _ := get(t, client, base+path, header("Sec-Fetch-Site", "cross-site")); code != http.StatusForbidden {
			t.Errorf("%s from another site's page: %d", path, code)
		}
	}
	if code, _ := get(t, stranger, base+"/app.js?token=AAAA", nil); code != http.StatusUnauthorized {
		t.Errorf("a wrong token in the address: %d", code)
	}
	if code, _ := get(t, client, base+"/app.js", header("Origin", base)); code != http.StatusOK {
		t.Errorf("the page's own request: %d", code)
	}
}

func TestListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", ":0", "10.0.0.1:0", "[::]:0", "127.0.0.1", "example.org:80"} {
		if s, err := web.New(address, &daemon{}, time.Second); err == nil {
			t.Errorf("%q: listens at %s", address, s.URL())
		}
	}
}

// event is what the page reads.
type event struct {
	Error       string     `json:"error"`
	Matching    int        `json:"matching"`
	Total       int        `json:"total"`
	From        int        `json:"from"`
	Entries     int        `json:"entries"`
	Seconds     float64    `json:"interval_s"`
	Connections []api.Flow `json:"connections"`
}

// events calls fn with each event until it returns false.
func events(t *testing.T, c *http.Client, url string, fn func(event) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, resp.Status)
	}
	s := bufio.NewScanner(resp.Body)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		text, ok := strings.CutPrefix(s.Text(), "data: ")
		if !ok {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if !fn(e) {
			return
		}
	}
	t.Fatalf("the events ended: %v", s.Err())
}

// A page gets the rows of its window, of those that its filter selects, in its order.
func TestWindow(t *testing.T) {
	t.Parallel()
	base, client := serve(t, &daemon{})
	for query, want := range map[string]struct {
		matching, from, rows int
		first                uint16
	}{
		"":                                    {1000, 0, 200, 1000},
		"?order=age":                          {1000, 0, 200, 1999},
		"?order=age&reverse=1":                {1000, 0, 200, 1000},
		"?order=name&from=900":                {1000, 900, 100, 1900},
		"?order=name&from=5000":               {1000, 999, 1, 1999},
		"?filter=peer:172.17.0.2:150":         {10, 0, 10, 1500},
		"?filter=peer:172.17.0.2:150&from=50": {10, 9, 1, 1509},
		"?filter=nothing":                     {0, 0, 0, 0},
	} {
		events(t, client, base+"/events"+query, func(e event) bool {
			if e.Total != 1000 || e.Matching != want.matching || e.From != want.from || len(e.Connections) != want.rows ||
				want.rows > 0 && e.Connections[0].Orig.Sport != want.first {
				t.Errorf("%q: total %d, matching %d, from %d, %d rows, the first %+v", query, e.Total, e.Matching, e.From, len(e.Connections), e.Connections[:min(1, len(e.Connections))])
			}
			return false
		})
	}
	for _, query := range []string{"?from=-1", "?from=x", "?order=color", "?filter=pear:x"} {
		if code, body := get(t, client, base+"/events"+query, nil); code != http.StatusBadRequest || body == "" {
			t.Errorf("%q: %d %q", query, code, body)
		}
	}
}

// A daemon that ends and comes again is said to have, on the same stream.
func TestDaemonGoesAndComes(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	base, client := serve(t, d)
	step := 0
	events(t, client, base+"/events", func(e event) bool {
		switch {
		case step == 0 && e.Entries == 1000 && e.Seconds > 0:
			d.down.Store(true)
			step++
		case step == 1 && e.Error != "":
			if e.Connections == nil {
				t.Error("an event without a list of connections")
			}
			d.down.Store(false)
			step++
		case step == 2 && e.Error == "" && e.Entries == 1000:
			return false
		}
		return true
	})
}

// The daemon is asked while a page is open, once for all of them, and not otherwise. There
// are not more pages than the bound.
func TestPages(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	base, client := serve(t, d)
	if n := d.asked.Load(); n != 0 {
		t.Errorf("asked %d times before a page listened", n)
	}
	const most = 16
	var open []io.Closer
	for range most {
		resp, err := client.Get(base + "/events")
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", resp, err)
		}
		open = append(open, resp.Body)
	}
	if code, body := get(t, client, base+"/events", nil); code != http.StatusServiceUnavailable || !strings.Contains(body, "16 pages") {
		t.Errorf("one more page: %d %q", code, body)
	}
	for _, c := range open {
		c.Close()
	}
	// The server learns of the end of a page when it next writes.
	deadline := time.Now().Add(20 * time.Second)
	for last := int64(-1); last != d.asked.Load(); time.Sleep(200 * time.Millisecond) {
		if last = d.asked.Load(); time.Now().After(deadline) {
			t.Fatal("the daemon is still asked after all pages are closed")
		}
		time.Sleep(200 * time.Millisecond)
	}
	events(t, client, base+"/events", func(e event) bool { return e.Seconds == 0 }) // begins anew
}

func TestExplain(t *testing.T) {
	t.Parallel()
	base, client := serve(t, &daemon{})
	for subject, want := range map[string]int{"web": 200, "tcp:10.0.0.1:80": 200, "gone": 502, "": 400, "%3Cscript%3E": 400} {
		code, body := get(t, client, base+"/explain?subject="+subject, nil)
		if code != want || code == http.StatusOK && !json.Valid([]byte(body)) {
			t.Errorf("%q: %d %q, want %d", subject, code, body, want)
		}
	}
}

// The page is small, has no inline script or style, and names no other site but in
// licences.
func TestPageFiles(t *testing.T) {
	t.Parallel()
	const most = 120_000
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	page := os.DirFS("page")
	err := fs.WalkDir(page, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(name, "LICENSE") {
			return err
		}
		b, err := fs.ReadFile(page, name)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".html") && (bytes.Contains(b, []byte("<style")) || bytes.Contains(b, []byte(" style=")) || bytes.Contains(b, []byte("<script>"))) {
			return fmt.Errorf("%s has inline code", name)
		}
		if !strings.HasPrefix(name, "vendor/") && bytes.Contains(b, []byte("://")) {
			return fmt.Errorf("%s names an address", name)
		}
		_, err = z.Write(b)
		return err
	})
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes, compressed", packed.Len())
	if packed.Len() > most {
		t.Errorf("the page takes %d bytes compressed, %d at most", packed.Len(), most)
	}
}
