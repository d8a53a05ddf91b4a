package pipe_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
)

// application is a server at 10.9.0.2 and its client.
type application struct {
	port           int
	server, client []string
	want           string // in the client's output
	bytes          uint64 // least number of bytes carried by the pipe
}

// mosquitto: one client publishes lines, another one has subscribed to them. The first one
// gets the end of its input when the other one has all lines: mosquitto_pub 2.1 leaves, with
// success, 0.1 s after the end, whatever it has not sent yet.
func mosquitto(t *testing.T, dir string, content []byte) application {
	t.Helper()
	const line = 32 << 10 // of hexadecimal digits
	var text bytes.Buffer
	for piece := range slices.Chunk(content, line/2) {
		fmt.Fprintf(&text, "%x\n", piece)
	}
	lines, conf := filepath.Join(dir, "lines"), filepath.Join(dir, "mosquitto.conf")
	settings := "listener 1883 10.9.0.2\nallow_anonymous true\nuser root\nmax_queued_messages 0\n"
	if err := errors.Join(os.WriteFile(lines, text.Bytes(), 0o644), os.WriteFile(conf, []byte(settings), 0o644)); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`sub="mosquitto_sub -h 10.9.0.2 -t lines -q 1 -c -i $$" end=%[1]s.$$
mkfifo $end && $sub -E || exit
cat %[1]s $end | mosquitto_pub -h 10.9.0.2 -t lines -q 1 -l &
$sub -C %[2]d | sha256sum && : >$end && wait $!`, lines, len(content)/(line/2))
	return application{
		1883, []string{"mosquitto", "-c", conf}, []string{"sh", "-c", script},
		fmt.Sprintf("%x", sha256.Sum256(text.Bytes())), 16 << 20,
	}
}

// openTo lets other users than root enter a test's directory.
func openTo(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir), scratch} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// pgbench leaves the same tables by the pipe as by TCP.
func TestRunPostgreSQL(t *testing.T) {
	t.Parallel()
	needBPF(t)
	bin, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bin) == 0 {
		t.Fatalf("no PostgreSQL: scripts/install-deps.sh installs it (%v)", err)
	}
	one, two := neighbours(t)
	b, socket := serve(t, nil)
	openTo(t, filepath.Dir(socket))
	dir := t.TempDir()
	openTo(t, dir)
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	// The server refuses to run as root.
	as := func(program string, args ...string) []string {
		return append([]string{"setpriv", "--reuid", strconv.Itoa(nobody), "--regid", strconv.Itoa(nobody), "--clear-groups",
			filepath.Join(bin[len(bin)-1], program)}, args...)
	}
	initdb := as("initdb", "-D", dir+"/data", "-U", "tester", "-A", "trust", "--no-sync", "--no-locale")
	if out, err := exec.Command(initdb[0], initdb[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var log bytes.Buffer
	server := piped(t, socket, "65536", as("postgres", "-D", dir+"/data", "-h", "10.9.0.2", "-k", dir, "-F",
		"-c", "logging_collector=off")...)
	server.Dir = dir
	server.Stdout, server.Stderr = &log, &log
	conf := "host all all 10.9.0.0/24 trust\n"
	if err := os.WriteFile(dir+"/data/pg_hba.conf", []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, two, server)
	eventually(t, "an answer of the server", func() bool {
		cmd := exec.Command(filepath.Join(bin[len(bin)-1], "pg_isready"), "-h", "10.9.0.2", "-U", "tester", "-d", "postgres", "-q")
		return netns.Do(one, cmd.Start) == nil && cmd.Wait() == nil
	})
	const script = `pgbench="$0/pgbench -h 10.9.0.2 -U tester" psql="$0/psql -h 10.9.0.2 -U tester -d postgres -X -A -t"
$pgbench -i -q -s 2 postgres 2>/dev/null >/dev/null && $pgbench -c 1 -t 300 --random-seed 7 postgres >/dev/null 2>&1 &&
for table in accounts tellers branches; do $psql -c "copy (select * from pgbench_$table order by 1) to stdout" | sha256sum; done &&
$psql -c "select count(*), sum(delta) from pgbench_history"`
	tables := func(preloaded bool) string {
		cmd := piped(t, socket, "65536", "sh", "-c", script, bin[len(bin)-1])
		if !preloaded {
			cmd.Env = nil
		}
		out, err := output(one, cmd)
		if err != nil || bytes.Count(out, []byte("\n")) != 4 {
			t.Fatalf("%v: %s\n%s", err, out, log.Bytes())
		}
		return string(out)
	}
	want := tables(false)
	// A table may have gone by TCP before the connection moves to the pipe.
	for end := time.Now().Add(20 * time.Second); b.Status().SentBytes < 4<<20; {
		if got := tables(true); got != want {
			t.Fatalf("tables by TCP, then by the pipe:\n%s\n%s", want, got)
		}
		if time.Now().After(end) {
			t.Fatalf("the pipe carried %d bytes", b.Status().SentBytes)
		}
	}
}

// nobody is an unprivileged user ID.
const nobody = 65534

// Unmodified programs exchange the right bytes between two namespaces, and the pipe carries
// them.
func TestRunApplications(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	dir := t.TempDir()
	openTo(t, dir) // servers' workers run as other users
	content := make([]byte, 24<<20)
	random := rand.NewChaCha8([32]byte{1})
	if _, err := random.Read(content); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	const times = 8 // on one connection, if the client keeps it
	sum := fmt.Sprintf("%x", sha256.Sum256(bytes.Repeat(content, times)))
	fetch := func(port int) []string {
		url := fmt.Sprintf("http://10.9.0.2:%d/file ", port)
		return []string{"sh", "-c", "curl --silent --show-error --fail " + strings.Repeat(url, times) + " | sha256sum"}
	}
	nginx := func(workers, port int) []string {
		conf := filepath.Join(dir, fmt.Sprintf("nginx-%d.conf", port))
		text := fmt.Sprintf(`daemon off; worker_processes %d; pid %[2]s/pid-%[1]d; error_log %[2]s/errors;
events {} http { access_log off; sendfile on; client_body_temp_path %[2]s/a; proxy_temp_path %[2]s/b; fastcgi_temp_path %[2]s/c;
uwsgi_temp_path %[2]s/d; scgi_temp_path %[2]s/e; server { listen %[3]d; root %[2]s; }
upstream files { server 10.9.0.2:%[3]d; keepalive 4; } server { listen %[4]d; location / {
proxy_pass http://files; proxy_http_version 1.1; proxy_set_header Connection ""; } } }`, workers, dir, port, port+100)
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return []string{"nginx", "-c", conf, "-e", filepath.Join(dir, "errors")}
	}
	for name, app := range map[string]application{
		"iperf3":          {5201, []string{"iperf3", "-s"}, []string{"iperf3", "-c", "10.9.0.2", "-t", "1"}, "iperf Done.", 32 << 20},
		"iperf3, reverse": {5202, []string{"iperf3", "-s", "-p", "5202"}, []string{"iperf3", "-c", "10.9.0.2", "-p", "5202", "-R", "-t", "1"}, "iperf Done.", 32 << 20},
		"nginx":           {8001, nginx(1, 8001), fetch(8001), sum, 16 << 20},
		"nginx, workers":  {8002, nginx(2, 8002), fetch(8002), sum, 16 << 20},
		"nginx, proxy":    {8103, nginx(2, 8003), fetch(8103), sum, 16 << 20},
		"mosquitto":       mosquitto(t, dir, content[:16<<20]),
		"python3": {
			8004, []string{"python3", "-c", "import http.server, os; os.chdir('" + dir + "'); http.server.test(http.server.SimpleHTTPRequestHandler, http.server.ThreadingHTTPServer, port=8004)"},
			fetch(8004), sum, 16 << 20,
		},
		"redis": {
			6379, []string{"redis-server", "--bind", "10.9.0.2", "--protected-mode", "no", "--save", "", "--dir", dir},
			[]string{"sh", "-c", "redis-benchmark -h 10.9.0.2 -n 4000 -c 8 -d 4096 -t set,get -q | grep --quiet GET: && " +
				"redis-cli -h 10.9.0.2 -x set file < " + dir + "/file && redis-cli -h 10.9.0.2 --raw get file | head --bytes -1 | sha256sum"},
			fmt.Sprintf("%x", sha256.Sum256(content)), 8 << 20,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, socket := serve(t, nil)
			openTo(t, filepath.Dir(socket))
			server := piped(t, socket, "65536", app.server...)
			var log bytes.Buffer
			server.Stdout, server.Stderr = &log, &log
			start(t, two, server)
			eventually(t, name+"'s port", func() bool { return listens(t, two, app.port) })
			// A short transfer may end before the connection moves to the pipe.
			for end := time.Now().Add(20 * time.Second); b.Status().SentBytes < app.bytes; {
				out, err := output(one, piped(t, socket, "65536", app.client...))
				if err != nil || !bytes.Contains(out, []byte(app.want)) {
					t.Fatalf("%v: %s\n%s", err, out, log.Bytes())
				}
				if time.Now().After(end) {
					t.Fatalf("the pipe carried %d bytes", b.Status().SentBytes)
				}
			}
		})
	}
}

// start starts a command and ends it with the test.
func start(t *testing.T, ns string, cmd *exec.Cmd) {
	t.Helper()
	if err := netns.Do(ns, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		ended := make(chan struct{})
		go func() {
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				_ = cmd.Process.Kill()
			}
		}()
		_ = cmd.Wait()
		close(ended)
	})
}

// output runs a command, with all that it starts for 30 s at most, and returns its output.
func output(ns string, cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := netns.Do(ns, cmd.Start); err != nil {
		return nil, err
	}
	late := time.AfterFunc(30*time.Second, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	defer late.Stop()
	err := cmd.Wait()
	return out.Bytes(), err
}

// listens reports whether a server listens on a port. It does not connect: iperf3 serves one
// client at a time and would refuse the next one.
func listens(t *testing.T, ns string, port int) (found bool) {
	t.Helper()
	listener := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:0000 0A `, port))
	err := netns.Do(ns, func() error {
		for _, family := range []string{"tcp", "tcp6"} {
			table, err := os.ReadFile("/proc/thread-self/net/" + family)
			if err != nil {
				return err
			}
			found = found || listener.Match(table)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
