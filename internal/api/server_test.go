package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/check"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(visitorEnv); socket != "" {
		visit(socket)
		return
	}
	check.Main(m)
}

// backend knows one container and records the requests.
type backend struct {
	called []string
	err    error
}

func (b *backend) Web() (api.Web, error) {
	return api.Web{Address: "http://127.0.0.1:9478/#token=x"}, b.call("web", "")
}

func (b *backend) call(name, container string) error {
	b.called = append(b.called, name+" "+container)
	if b.err != nil {
		return b.err
	}
	if container != "" && container != "web" {
		return &api.UnknownContainerError{Name: container, Known: []string{"web"}}
	}
	return nil
}

func (b *backend) Status() (api.Status, error) {
	return api.Status{State: api.StateActive, PID: 7, Containers: []api.Container{{Name: "web"}}}, b.call("status", "")
}

func (b *backend) Flows(c string) ([]api.Flow, error) {
	if c == "" {
		return nil, b.call("flows", c)
	}
	return []api.Flow{{Container: c, Confilter: api.ConfilterDiscard}}, b.call("flows", c)
}

func (b *backend) Explain(s string) (api.Explanation, error) {
	return api.Explanation{Subject: s, Express: true}, b.call("explain", "")
}

func (b *backend) History(c string, since time.Time) (api.History, error) {
	return api.History{Container: c, Points: []api.Point{{At: since, Seconds: 1}}, Containers: []api.HistoryContainer{}}, b.call("history", c)
}

func (b *backend) Metrics(w io.Writer) error {
	if err := b.call("metrics", ""); err != nil {
		return err
	}
	_, err := io.WriteString(w, "scon_up 1\n")
	return err
}

func (b *backend) Flush(c string) (int, error) { return 3, b.call("flush", c) }
func (b *backend) Pause(c string) error        { return b.call("pause", c) }
func (b *backend) Resume(c string) error       { return b.call("resume", c) }
func (b *backend) Stop() error                 { return b.call("stop", "") }

// serve runs a server until the test ends, and returns its socket, in a directory that
// every user may traverse.
func serve(t *testing.T, b api.Backend, group string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "scon-api-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "scon.sock")
	l, err := api.Listen(path, group)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() {
		served <- api.Serve(ctx, l, api.Handler(b, http.NotFoundHandler()), slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is left behind: %v", err)
		}
	})
	return path
}

func TestClientGetsWhatTheBackendSays(t *testing.T) {
	b := &backend{}
	c := api.Dial(serve(t, b, ""))

	status, err := c.Status()
	wantStatus := api.Status{
		State: api.StateActive, PID: 7, Hooks: []api.Hook{}, Skipped: []api.Skipped{}, Reasons: map[string]uint64{},
		Containers: []api.Container{{Name: "web", Reasons: map[string]uint64{}}},
	}
	if diff := check.Diff(wantStatus, status); err != nil || diff != "" {
		t.Errorf("status: %v (-want +got):\n%s", err, diff)
	}
	flows, err := c.Flows("web")
	if want := []api.Flow{{Container: "web", Confilter: -1}}; err != nil || check.Diff(want, flows) != "" {
		t.Errorf("flows: %+v, %v", flows, err)
	}
	flows, err = c.Flows("")
	if err != nil || flows == nil || len(flows) != 0 {
		t.Errorf("flows of nobody: %#v, %v", flows, err)
	}
	explanation, err := c.Explain("tcp:10.0.0.1:80->10.0.0.2:90")
	if want := (api.Explanation{Subject: "tcp:10.0.0.1:80->10.0.0.2:90", Express: true, Findings: []api.Finding{}, Flows: []api.Flow{}}); err != nil || check.Diff(want, explanation) != "" {
		t.Errorf("explain: %+v, %v", explanation, err)
	}
	since := time.Date(2020, 1, 1, 0, 0, 0, 5, time.UTC)
	history, err := c.History("web", since)
	if want := (api.History{Container: "web", Points: []api.Point{{At: since, Seconds: 1}}, Containers: []api.HistoryContainer{}}); err != nil || check.Diff(want, history) != "" {
		t.Errorf("history: %+v, %v", history, err)
	}
	var metrics strings.Builder
	if err := c.Metrics(&metrics); err != nil || metrics.String() != "scon_up 1\n" {
		t.Errorf("metrics: %q, %v", &metrics, err)
	}
	if n, err := c.Flush("web"); n != 3 || err != nil {
		t.Errorf("flush: %d, %v", n, err)
	}
	if err := errors.Join(c.Pause(""), c.Resume("web"), c.Stop()); err != nil {
		t.Error(err)
	}
	want := []string{"status ", "flows web", "flows ", "explain ", "history web", "metrics ", "flush web", "pause ", "resume web", "stop "}
	if diff := check.Diff(want, b.called); diff != "" {
		t.Errorf("the backend was asked (-want +got):\n%s", diff)
	}
}

func TestClientGetsRefusals(t *testing.T) {
	b := &backend{}
	c := api.Dial(serve(t, b, ""))
	var e *api.Error

	_, err := c.Flush("db")
	if !errors.As(err, &e) || e.Status != http.StatusNotFound || e.Error() != `no container "db": running and hooked are web` {
		t.Errorf("unknown container: %#v", err)
	}
	_, err = c.Explain("a b")
	if !errors.As(err, &e) || e.Status != http.StatusBadRequest {
		t.Errorf("subject that is none: %#v", err)
	}
	var h api.History
	if err := c.Get(api.HistoryPath, url.Values{"since": {"yesterday"}}, &h); !errors.As(err, &e) || e.Status != http.StatusBadRequest || !strings.Contains(e.Error(), "since is") {
		t.Errorf("a time that is none: %v", err)
	}
	b.err = errors.New("list conntrack: no buffer space")
	_, err = c.Status()
	if !errors.As(err, &e) || e.Status != http.StatusInternalServerError || e.Error() != b.err.Error() {
		t.Errorf("failure of the backend: %#v", err)
	}
	if err := c.Metrics(io.Discard); !errors.As(err, &e) || e.Error() != b.err.Error() {
		t.Errorf("metrics of a backend that fails: %#v", err)
	}
}

func TestClientWithoutDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scon.sock")
	_, err := api.Dial(path).Status()
	if want := "no daemon answers at " + path + "; start one with 'scon up'"; !errors.Is(err, api.ErrNotRunning) || err.Error() != want {
		t.Errorf("no socket: %v", err)
	}
	leaveStaleSocket(t, path)
	if _, err := api.Dial(path).Status(); !errors.Is(err, api.ErrNotRunning) {
		t.Errorf("stale socket: %v", err)
	}
}

// TestClientOfSomethingElse connects a client to a server that is not SCON's.
func TestClientOfSomethingElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scon.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "<html>", http.StatusTeapot)
	})}
	go srv.Serve(l)
	defer srv.Close()
	_, err = api.Dial(path).Status()
	if want := "the daemon at " + path + " answered 418 I'm a teapot to /v1/status"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func leaveStaleSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scon.sock")
	leaveStaleSocket(t, path)
	l, err := api.Listen(path, "")
	if err != nil {
		t.Fatalf("over a stale socket: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := api.Listen(path, ""); !errors.Is(err, api.ErrInUse) {
		t.Errorf("a second daemon: %v", err)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// TestListenSparesOthers holds that a socket that a process serves stays, however it
// serves it.
func TestListenSparesOthers(t *testing.T) {
	type server = func(t *testing.T, path string)
	stream := func(backlog int) server {
		return func(t *testing.T, path string) {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, backlog)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, serve := range map[string]server{
		"idle": stream(10),
		"its queue is full": func(t *testing.T, path string) {
			stream(0)(t, path)
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
		},
		"datagrams": func(t *testing.T, path string) {
			conn, err := net.ListenPacket("unixgram", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.sock")
			serve(t, path)
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if l, err := api.Listen(path, ""); !errors.Is(err, api.ErrInUse) {
				t.Errorf("%v, %v, want %v", l, err, api.ErrInUse)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("the socket was replaced: %v", err)
			}
		})
	}
	t.Run("replaced", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a.sock")
		l, err := api.Listen(path, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		stream(10)(t, path)
		l.Close()
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("Close removed the socket of another process: %v", err)
		}
	})
}

func TestListenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, group, want string }{
		{file, "", "the file exists and is not a socket"},
		{filepath.Join(dir, "a.sock"), "no-such-group", `socket_group "no-such-group": no such group`},
		{filepath.Join(dir, "missing", "a.sock"), "", "no such file or directory"},
		{filepath.Join(dir, strings.Repeat("x", 110)), "", "invalid argument"},
	} {
		_, err := api.Listen(c.path, c.group)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("Listen(%q, %q): %v, want %q", c.path, c.group, err, c.want)
		}
	}
	if got, err := os.ReadFile(file); string(got) != "mine" {
		t.Errorf("the file at the socket's path was touched: %q, %v", got, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestHandlerRefuses(t *testing.T) {
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/", "", 404, `no route "/"`},
		{"GET", "/v1/", "", 404, `no route "/v1/"`},
		{"GET", "/v2/status", "", 404, `no route "/v2/status"`},
		{"POST", "/v1/status", "", 405, `/v1/status takes GET only`},
		{"POST", "/metrics", "", 405, `/metrics takes GET only`},
		{"GET", "/v1/flush", "", 405, `/v1/flush takes POST only`},
		{"GET", "/v1/status?x=1", "", 400, `/v1/status: unknown or repeated parameter "x"`},
		{"GET", "/v1/flows?container=a&container=b", "", 400, `/v1/flows: unknown or repeated parameter "container"`},
		{"GET", "/v1/flows?%zz", "", 400, `read query: invalid URL escape "%zz"`},
		{"GET", "/v1/explain", "", 400, `"" is neither a flow nor a container: it is empty; a flow is written as tcp:172.17.0.2:43512->10.0.0.1:80`},
		{"POST", "/v1/flush?container=web", "", 400, `/v1/flush: unknown or repeated parameter "container"`},
		{"POST", "/v1/flush", "{", 400, `read body: unexpected EOF`},
		{"POST", "/v1/flush", `{"container": 1}`, 400, `read body: json: cannot unmarshal number into Go struct field change.container of type string`},
		{"POST", "/v1/flush", `{"contaner": "web"}`, 400, `read body: json: unknown field "contaner"`},
		{"POST", "/v1/flush", `{} {}`, 400, `read body: more than one JSON document`},
		{"POST", "/v1/flush", `{"container": "` + strings.Repeat("a", 5000) + `"}`, 400, `read body: http: request body too large`},
		{"POST", "/v1/stop", `{"container": "web"}`, 400, `read body: json: unknown field "container"`},
	} {
		b := &backend{}
		w := httptest.NewRecorder()
		api.Handler(b, http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(c.method, c.target, strings.NewReader(c.body)))
		got := strings.TrimSpace(w.Body.String())
		if want := quote(c.want); w.Code != c.status || got != want {
			t.Errorf("%s %s %.30s\n got %d %s\nwant %d %s", c.method, c.target, c.body, w.Code, got, c.status, want)
		}
		if len(b.called) != 0 {
			t.Errorf("%s %s %.30s reached the backend: %v", c.method, c.target, c.body, b.called)
		}
	}
}

// quote returns the JSON document of a refusal.
func quote(message string) string {
	r := strings.NewReplacer(`"`, `\"`, `>`, `\u003e`)
	return `{"error":"` + r.Replace(message) + `"}`
}

func TestHandlerTakesNoBody(t *testing.T) {
	b := &backend{}
	w := httptest.NewRecorder()
	api.Handler(b, http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("POST", "/v1/pause", nil))
	if w.Code != 200 || len(b.called) != 1 || b.called[0] != "pause " {
		t.Errorf("got %d %s, backend %v", w.Code, w.Body, b.called)
	}
}

// FuzzHandler checks that every request gets a JSON document or metrics, that only
// complete requests reach the backend, and that nothing panics.
func FuzzHandler(f *testing.F) {
	for _, path := range []string{"/metrics", "/v1/status", "/v1/flows", "/v1/explain", "/v1/flush", "/v1/pause", "/v1/resume", "/v1/stop", "//v1/../x"} {
		f.Add("GET", path, "", "")
		f.Add("GET", path, "container=web&subject=tcp:10.0.0.1:80->[::1]:9", "")
		f.Add("POST", path, "", `{"container":"web"}`)
		f.Add("POST", path, "%", `{"container":null} []`)
		f.Add("PUT", path, "", "[]")
	}
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		r, err := http.NewRequest(method, "http://scon/", strings.NewReader(body))
		if err != nil {
			return
		}
		r.URL.Path, r.URL.RawQuery = path, query
		b := &backend{}
		w := httptest.NewRecorder()
		api.Handler(b, http.NotFoundHandler()).ServeHTTP(w, r)
		switch w.Code {
		case 200:
			if len(b.called) != 1 {
				t.Errorf("200 without the backend: %v", b.called)
			}
		case 400, 405:
			if len(b.called) != 0 {
				t.Errorf("%d, and the backend was asked: %v", w.Code, b.called)
			}
		case 404:
		case 301, 307: // the mux mends //, . and ..
			return
		default:
			t.Errorf("status %d", w.Code)
		}
		content, err := io.ReadAll(w.Body)
		isMetrics := w.Code == 200 && path == api.MetricsPath
		if err != nil || !isMetrics && !json.Valid(content) {
			t.Errorf("%d with body %q, %v", w.Code, content, err)
		}
	})
}
