package pipe_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// HAProxy forwards files of 256 MiB, by splice(2) and by copies, between pipes at both sides:
// rings grow in mid-stream.
func TestRunHAProxy(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	nstest.Run(t, two, "ip link set lo up")
	dir := t.TempDir()
	openTo(t, dir)
	const size = 256 << 20
	if err := os.WriteFile(filepath.Join(dir, "big"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "big"), size); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	nginx := write("nginx.conf", fmt.Sprintf(`daemon off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/errors;
events {} http { access_log off; sendfile on; client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c;
uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e; server { listen 127.0.0.1:80; root %[1]s; } }`, dir))
	haproxy := write("haproxy.cfg", `defaults
	timeout connect 5s
	timeout client 10s
	timeout server 10s
listen copies
	bind :8001
	mode http
	server app 127.0.0.1:80
listen splices
	bind :8002
	mode tcp
	option splice-auto
	option splice-request
	option splice-response
	server app 127.0.0.1:80
`)
	b, socket := serve(t, nil)
	openTo(t, filepath.Dir(socket))
	var log bytes.Buffer
	for _, argv := range [][]string{{"nginx", "-c", nginx, "-e", filepath.Join(dir, "errors")}, {"haproxy", "-db", "-f", haproxy}} {
		cmd := piped(t, socket, "65536", argv...)
		cmd.Stdout, cmd.Stderr = &log, &log
		start(t, two, cmd)
	}
	eventually(t, "ports", func() bool { return listens(t, two, 80) && listens(t, two, 8001) && listens(t, two, 8002) })
	for _, port := range []int{8001, 8002} {
		before := b.Status().SentBytes
		for range 4 {
			out, err := output(one, piped(t, socket, "65536", "curl", "--silent", "--show-error", "--fail", "--output", os.DevNull,
				"--write-out", "%{size_download}", fmt.Sprintf("http://10.9.0.2:%d/big", port)))
			if err != nil || string(out) != strconv.Itoa(size) {
				t.Fatalf("port %d: %v: %s\n%s", port, err, out, log.Bytes())
			}
		}
		// On a busy machine connections move late.
		if sent := b.Status().SentBytes - before; sent < 16<<20 {
			t.Errorf("port %d: the pipe carried %d bytes", port, sent)
		}
	}
}
