package web_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The rights of a unix socket are those of its file; a proxy has another name.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "web.sock")
	s, end := listen(t, path, &daemon{}, time.Second)
	if s.URL() != path || !s.IsLoopback() {
		t.Errorf("it is at %s", s.URL())
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Fatalf("%v, %v", info, err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	const base = "http://scon.example"
	if code, _ := get(t, client, base+"/reasons", nil); code != http.StatusOK {
		t.Errorf("a request by a proxy: %d", code)
	}
	foreign := func(r *http.Request) { r.Header.Set("Origin", "https://attacker.example") }
	if code, _ := get(t, client, base+"/reasons", foreign); code != http.StatusForbidden {
		t.Errorf("another site's request by a proxy: %d", code)
	}
	end()
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left")
	}
}

// The example of docs/web.md makes the page usable behind nginx: whole, second by second,
// and only with nginx's password.
func TestProxy(t *testing.T) {
	t.Parallel()
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/web.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "```nginx\n")
	example, _, _ = strings.Cut(example, "```")
	dir := t.TempDir()
	page, front := filepath.Join(dir, "web.sock"), filepath.Join(dir, "front.sock")
	for was, is := range map[string]string{"/run/scon/web.sock": page, "/etc/nginx/scon.htpasswd": filepath.Join(dir, "passwords")} {
		if strings.Count(example, was) != 1 {
			t.Fatalf("the example has no %s:\n%s", was, example)
		}
		example = strings.Replace(example, was, is, 1)
	}
	for name, text := range map[string]string{
		"passwords":  "reader:{PLAIN}secret\n",
		"nginx.conf": fmt.Sprintf("daemon off; master_process off; pid %[1]s/pid; events {}\nhttp { access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/temp; server { listen unix:%[2]s; %[3]s } }\n", dir, front, example),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, end := listen(t, page, &daemon{}, 10*time.Millisecond)
	defer end()
	var log bytes.Buffer
	proxy := exec.Command(nginx, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))
	proxy.Stderr = &log
	proxy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = proxy.Process.Signal(syscall.SIGTERM), proxy.Wait() }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		for range 500 { // nginx starts
			if conn, err = new(net.Dialer).DialContext(ctx, "unix", front); err == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		return conn, err
	}}}
	const base = "http://scon.example"
	stranger, err := client.Get(base + "/reasons")
	if err != nil {
		t.Fatalf("nginx: %v: %s", err, &log)
	}
	stranger.Body.Close()
	if stranger.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the password: %s", stranger.Status)
	}
	password := func(r *http.Request) {
		r.SetBasicAuth("reader", "secret")
		r.Header.Set("Origin", base)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for path, want := range map[string]string{"/": "<title>SCON</title>", "/app.js": "function App", "/reasons": "no_entry", "/explain?subject=web": `"subject":"web"`} {
		if code, text := get(t, client, base+path, password); code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d: %s", path, code, text)
		}
	}
	r, err := http.NewRequest(http.MethodGet, base+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	password(r)
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := bufio.NewReader(resp.Body)
	for range 6 { // an event and the empty line behind it
		if line, err := events.ReadString('\n'); err != nil || len(line) > 1 && !strings.HasPrefix(line, "data: ") {
			t.Fatalf("%q: %v", line, err)
		}
	}
}
