package web_test

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/internal/web"
)

// daemon has 1,000 connections, or as many as said, and counts what it is asked.
type daemon struct {
	connections         int
	asked               atomic.Int64
	names               []string // of the connections' containers, in turn; without them web
	down, empty, paused atomic.Bool
	few                 atomic.Bool // few packets go express
	once                sync.Once
	start               time.Time
	hang                sync.RWMutex // held while it does not answer
}

func (d *daemon) entries() int { return cmp.Or(d.connections, 1000) }

func (d *daemon) Status() (api.Status, error) {
	n := uint64(d.asked.Add(1))
	d.hang.RLock()
	defer d.hang.RUnlock()
	if d.down.Load() {
		return api.Status{}, errors.New("no daemon answers")
	}
	if d.empty.Load() {
		return api.Status{State: api.StateActive, PID: 7}, nil
	}
	express := 1000 * n
	if d.few.Load() {
		express = 10 * n
	}
	state := api.StateActive
	if d.paused.Load() {
		state = api.StatePaused
	}
	return api.Status{
		State: state, PID: 7, CPUSeconds: float64(n) / 1000, Rules: api.Rules{Generation: uint32(n / 8)},
		Containers: []api.Container{
			{Name: "<script>alert(1)</script>", ID: "4f2a", Dev: "veth1", Bridge: "docker0", RegularPackets: 5 * n, Reasons: map[string]uint64{"per_packet_rule": 5 * n}},
			{Name: "db", ID: "77aa", Dev: "veth2", Bridge: "docker0", Paused: true, Origin: api.Origin{Image: "postgres:17", Project: "shop", Service: "db"}},
		},
		Reasons: map[string]uint64{"not_ip": 3 * n},
		Totals:  api.Totals{Entries: d.entries(), ExpressPackets: express, RegularPackets: 5 * n},
	}, nil
}

func (d *daemon) Flows(string) ([]api.Flow, error) {
	if d.empty.Load() {
		return nil, nil
	}
	flows := make([]api.Flow, d.entries())
	for i := range flows {
		flows[i] = api.Flow{
			Container: "web", Proto: "udp", Path: "wire", State: "express", AgeMS: int64(i), Direction: []string{"out", "in"}[i%2],
			LeaseBound: "what the kernel does not announce, and conntrack's time for the connection",
			Orig:       api.Tuple{Src: "172.17.0.2", Sport: uint16(1000 + i), Dst: "10.0.0.1", Dport: 53},
		}
	}
	for i := range flows {
		if len(d.names) > 0 {
			flows[i].Container = d.names[i%len(d.names)]
		}
	}
	return flows, nil
}

func (d *daemon) Explain(subject string) (api.Explanation, error) {
	if subject == "gone" {
		return api.Explanation{}, errors.New("no container \"gone\"")
	}
	return api.Explanation{Subject: subject, Express: true, Findings: []api.Finding{
		{Level: "ok", What: "it goes express"},
		{Level: "note", What: "the latest was kept regular by ip filter FORWARD handle 7", Why: "it judges single packets, by limit: limit rate 1/s <b>", Rule: &api.Rule{Table: "ip filter", Chain: "FORWARD", Handle: 7, Text: "limit rate 1/s <b>"}},
	}}, nil
}

// History is an hour of points of 10 s that ends now, the last half of it for a container.
func (d *daemon) History(container string, since time.Time) (api.History, error) {
	h := api.History{Container: container, Points: []api.Point{}, Containers: []api.HistoryContainer{}}
	for i := range 360 {
		p := api.Point{At: d.began().Add(time.Duration(i-360) * 10 * time.Second), Seconds: 10, Traffic: api.Traffic{ExpressPackets: uint64(1000 * i), ExpressBytes: uint64(1000000 * i), RegularPackets: 50}}
		if p.At.After(since) && (container == "" || i >= 180) {
			h.Points = append(h.Points, p)
		}
	}
	return h, nil
}

// began is when the daemon was first asked for its history.
func (d *daemon) began() time.Time {
	d.once.Do(func() { d.start = time.Now() })
	return d.start
}

// documents are what a server has beside the feed.
func documents(d *daemon) map[string]web.Document {
	return map[string]web.Document{
		"explain": func(_ context.Context, q url.Values) (any, error) {
			if _, err := api.ParseSubject(q.Get("subject")); err != nil {
				return nil, err
			}
			return d.Explain(q.Get("subject"))
		},
		"history": func(_ context.Context, q url.Values) (any, error) { return api.HistoryFor(d, q) },
		"pipe": func(context.Context, url.Values) (any, error) {
			return map[string]any{"made": 3, "connections": []any{}, "engines": []string{"bpf"}, "processes": 2, "sent_bytes": 7, "memory_bytes": 1, "memory_limit": 2}, nil
		},
		"startup": func(context.Context, url.Values) (any, error) {
			return nil, errors.New("no startup service answers")
		},
		"doctor": func(context.Context, url.Values) (any, error) {
			return api.Doctor{Kernel: "6.1", Capabilities: []api.Capability{{Name: "tcx", Level: "note", Found: "needs Linux 6.6", Without: "clsact"}}, Findings: []api.Finding{
				{Level: "note", What: "rule inet filter forward handle 9 judges single packets", Rule: &api.Rule{Table: "inet filter", Chain: "forward", Handle: 9, Text: "quota over 5 mbytes"}},
			}}, nil
		},
		"profile": func(_ context.Context, q url.Values) (any, error) {
			return map[string]string{"svg": `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><title>` + q.Get("container") + `</title></svg>`}, nil
		},
	}
}

// listen returns a server that runs until the test ends, or end is called.
func listen(t *testing.T, address string, d *daemon, interval time.Duration) (s *web.Server, end func()) {
	t.Helper()
	s, err := web.Listen(address, web.Options{Feed: live.NewFeed(t.Context(), d, interval), Documents: documents(d)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return s, end
}

// owner is a client that puts the token into its requests.
type owner struct {
	token string
	http.RoundTripper
}

func (o owner) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", "Bearer "+o.token)
	}
	return o.RoundTripper.RoundTrip(r)
}

// serve runs a server until the test ends. The client has its token.
func serve(t *testing.T, d *daemon) (base string, client *http.Client) {
	t.Helper()
	s, _ := listen(t, "127.0.0.1:0", d, 20*time.Millisecond)
	base, token, _ := strings.Cut(s.URL(), "/#token=")
	return base, &http.Client{Transport: owner{token, &http.Transport{DisableKeepAlives: true}}}
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
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for _, path := range []string{"/", "/app.js", "/events", "/explain?subject=web", "/reasons", "/filter", "/pipe", "/startup"} {
		shown := path == "/" || path == "/app.js" // has nothing to hide
		for what, c := range map[string]struct {
			client *http.Client
			change func(*http.Request)
			want   int
		}{
			"no token":               {stranger, nil, http.StatusUnauthorized},
			"another token":          {client, header("Authorization", "Bearer AAAAAAAAAAAAAAAAAAAAAA"), http.StatusUnauthorized},
			"an empty token":         {client, header("Authorization", "Bearer "), http.StatusUnauthorized},
			"a token as a cookie":    {stranger, header("Cookie", "scon-token="+client.Transport.(owner).token), http.StatusUnauthorized},
			"another name":           {client, host("attacker.example:9478"), http.StatusForbidden},
			"a name like an address": {client, host("127.0.0.1.attacker.example"), http.StatusForbidden},
			"another origin":         {client, header("Origin", "http://attacker.example"), http.StatusForbidden},
			"no origin, as by file:": {client, header("Origin", "null"), http.StatusForbidden},
			"another port's origin":  {client, header("Origin", "http://127.0.0.1:1"), http.StatusForbidden},
			"a request to change":    {client, func(r *http.Request) { r.Method = http.MethodPost }, http.StatusMethodNotAllowed},
		} {
			if shown && c.want == http.StatusUnauthorized {
				c.want = http.StatusOK
			}
			if code, body := get(t, c.client, base+path, c.change); code != c.want || !shown && strings.Contains(body, "containers") {
				t.Errorf("%s, %s: %d %q, want %d", path, what, code, body, c.want)
			}
		}
		for _, site := range []string{"cross-site", "same-site"} { // another port of this address is the same site
			if code, _ := get(t, client, base+path, header("Sec-Fetch-Site", site)); code != http.StatusForbidden {
				t.Errorf("%s for a page of %s: %d", path, site, code)
			}
		}
	}
	for what, change := range map[string]func(*http.Request){
		"the page's own": header("Origin", base), "by another port, as with ssh -L": host("localhost:8080"), "by IPv6": host("[::1]:9478"),
	} {
		if code, _ := get(t, client, base+"/reasons", change); code != http.StatusOK {
			t.Errorf("a request %s: %d", what, code)
		}
	}
	link := func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", "navigate")
	}
	if code, _ := get(t, stranger, base+"/", link); code != http.StatusOK {
		t.Errorf("a link to the page: %d", code)
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]struct {
		url      string
		loopback bool
	}{
		"127.0.0.1:0": {"http://127.0.0.1:", true},
		"[::1]:0":     {"http://[::1]:", true},
		"0.0.0.0:0":   {"http://localhost:", false},
		"[::]:0":      {"http://localhost:", false},
	} {
		s, err := web.Listen(address, web.Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.HasPrefix(s.URL(), want.url) || !strings.Contains(s.URL(), "/#token=") || s.IsLoopback() != want.loopback {
			t.Errorf("%s: %s, loopback %v", address, s.URL(), s.IsLoopback())
		}
		s.Close()
	}
	for _, address := range []string{"127.0.0.1", "127.0.0.1:x", "192.0.2.1:0"} {
		if s, err := web.Listen(address, web.Options{}); err == nil {
			t.Errorf("%q: listens at %s", address, s.URL())
		}
	}
}

// What the page asks for beside the daemon's state.
func TestDocuments(t *testing.T) {
	t.Parallel()
	base, client := serve(t, &daemon{})
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"pipe":    {http.StatusOK, `"made":3`},
		"startup": {http.StatusBadGateway, "no startup service answers"},
		"other":   {http.StatusNotFound, ""},
	} {
		if code, body := get(t, client, base+"/"+path, nil); code != want.code || !strings.Contains(body, want.body) {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}

// event is what the page reads.
type event struct {
	Error       string           `json:"error"`
	Entries     int              `json:"entries"`
	Seconds     float64          `json:"interval_s"`
	Containers  []live.Container `json:"containers"`
	Connections []api.Flow       `json:"connections"`
	Table       struct {
		Matching, Total, From int
	} `json:"connection_table"`
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
		"":                       {1000, 0, 200, 1000},
		"?connections_order=age": {1000, 0, 200, 1999},
		"?connections_order=age&connections_reverse=1":    {1000, 0, 200, 1000},
		"?connections_order=name&connections_from=900":    {1000, 900, 100, 1900},
		"?connections_order=name&connections_from=5000":   {1000, 999, 1, 1999},
		"?filter=peer:172.17.0.2:150":                     {10, 0, 10, 1500},
		"?filter=peer:172.17.0.2:150&connections_from=50": {10, 9, 1, 1509},
		"?filter=nothing": {0, 0, 0, 0},
	} {
		events(t, client, base+"/events"+query, func(e event) bool {
			if e.Table.Total != 1000 || e.Table.Matching != want.matching || e.Table.From != want.from || len(e.Connections) != want.rows ||
				want.rows > 0 && e.Connections[0].Orig.Sport != want.first {
				t.Errorf("%q: total %d, matching %d, from %d, %d rows, the first %+v", query, e.Table.Total, e.Table.Matching, e.Table.From, len(e.Connections), e.Connections[:min(1, len(e.Connections))])
			}
			return false
		})
	}
	for _, query := range []string{"?connections_from=-1", "?connections_from=x", "?connections_order=color", "?containers_order=way", "?filter=pear:x"} {
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
	page := os.DirFS("../../internal/web/page")
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
