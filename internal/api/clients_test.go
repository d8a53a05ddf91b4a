package api_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
)

// visitorEnv is set in a process that acts as a client of another user; it holds the
// socket.
const visitorEnv = "SCON_TEST_SOCKET"

// verbs are the requests of a client.
var verbs = []struct {
	name    string
	changes bool
	do      func(*api.Client) error
}{
	{"status", false, func(c *api.Client) error { _, err := c.Status(); return err }},
	{"flows", false, func(c *api.Client) error { _, err := c.Flows(""); return err }},
	{"explain", false, func(c *api.Client) error { _, err := c.Explain("web"); return err }},
	{"metrics", false, func(c *api.Client) error { return c.Metrics(io.Discard) }},
	{"flush", true, func(c *api.Client) error { _, err := c.Flush(""); return err }},
	{"pause", true, func(c *api.Client) error { return c.Pause("") }},
	{"resume", true, func(c *api.Client) error { return c.Resume("") }},
	{"stop", true, (*api.Client).Stop},
}

// visit sends every request and prints its outcome.
func visit(socket string) {
	c := api.Dial(socket)
	for _, v := range verbs {
		fmt.Printf("%s: %v\n", v.name, v.do(c))
	}
}

// visitAs runs visit as another user.
func visitAs(t *testing.T, socket string, as syscall.Credential) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test takes other users' places: run it as root (sudo make test)")
	}
	cmd := exec.Command("/proc/self/exe") // its path may be root's alone
	cmd.Env = append(os.Environ(), visitorEnv+"="+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &as}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

const nobody = 65534

// Members of the socket's group read, only root changes state, others cannot connect.
func TestRights(t *testing.T) {
	const groupName = "mail" // of every distribution
	group, err := user.LookupGroup(groupName)
	if err != nil {
		t.Skip("needs a group called " + groupName)
	}
	gid, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	const ok = "<nil>"
	for name, c := range map[string]struct {
		as            syscall.Credential
		reads         string // how it ends
		changes       string
		called        int
		withoutSocket bool
	}{
		"root":                     {as: syscall.Credential{}, reads: ok, changes: ok, called: len(verbs)},
		"member of the group":      {as: syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{uint32(gid)}}, reads: ok, changes: "only root may change state; members of the socket's group may read", called: 4},
		"another user":             {as: syscall.Credential{Uid: nobody, Gid: nobody}, withoutSocket: true},
		"root's group is not root": {as: syscall.Credential{Uid: nobody, Gid: 0}, withoutSocket: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := &backend{}
			socket := serve(t, b, groupName)
			if c.withoutSocket {
				c.reads = "permission denied for " + socket + "; run as root, or, to read, as a member of the group socket_group of the configuration"
				c.changes = c.reads
			}
			want := ""
			for _, v := range verbs {
				outcome := c.reads
				if v.changes {
					outcome = c.changes
				}
				want += v.name + ": " + outcome + "\n"
			}
			if got := visitAs(t, socket, c.as); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
			if len(b.called) != c.called {
				t.Errorf("the backend was asked %v", b.called)
			}
		})
	}
}

// connect opens connections without a request.
func connect(t *testing.T, socket string, n int) []net.Conn {
	t.Helper()
	var conns []net.Conn
	for range n {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns = append(conns, c)
	}
	return conns
}

// ended waits until the server has closed a connection, and returns what the server
// sent.
func ended(t *testing.T, c net.Conn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	words, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection stays open: %v", err)
	}
	return string(words)
}

// The server serves the limit of connections, and others after some have ended.
func TestManyClients(t *testing.T) {
	socket := serve(t, &backend{}, "")
	conns := connect(t, socket, 512)
	surplus := connect(t, socket, 1)[0]
	if words := ended(t, surplus); words != "" {
		t.Errorf("one too many hears %q", words)
	}
	_, err := api.Dial(socket).Status()
	if want := "the daemon at " + socket + " closed the connection: it is ending, or has too many clients"; err == nil || err.Error() != want {
		t.Errorf("one too many: %v, want %s", err, want)
	}
	for _, c := range conns {
		c.Close()
	}
	for end := time.Now().Add(20 * time.Second); ; {
		if _, err = api.Dial(socket).Status(); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after all have left: %v", err)
		}
	}
}

// Clients that send nothing, or send slowly, are disconnected.
func TestSlowClients(t *testing.T) {
	socket := serve(t, &backend{}, "")
	for name, words := range map[string]string{
		"silent":           "",
		"half a line":      "GET /v1/sta",
		"half a header":    "GET /v1/status HTTP/1.1\r\nHost: scon\r\nX-A: b",
		"less than agreed": "POST /v1/pause HTTP/1.1\r\nHost: scon\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, socket, 1)[0]
			if _, err := io.WriteString(c, words); err != nil {
				t.Fatal(err)
			}
			ended(t, c)
		})
	}
}

// A request larger than SCON's is not read to its end.
func TestLargeRequests(t *testing.T) {
	b := &backend{}
	socket := serve(t, b, "")
	endless := io.LimitReader(neverEnding('a'), 1<<30)
	for name, c := range map[string]struct {
		head   string
		status int
	}{
		"header": {"GET /v1/status HTTP/1.1\r\nHost: scon\r\nX-A: ", http.StatusRequestHeaderFieldsTooLarge},
		"target": {"GET /v1/flows?container=", http.StatusRequestHeaderFieldsTooLarge},
		"body":   {"POST /v1/flush HTTP/1.1\r\nHost: scon\r\nContent-Length: 1073741824\r\n\r\n{\"container\": \"", http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, socket, 1)[0]
			if _, err := io.WriteString(conn, c.head); err != nil {
				t.Fatal(err)
			}
			sent, err := io.Copy(conn, endless)
			if err == nil || sent > 1<<20 {
				t.Errorf("it took %d bytes, %v", sent, err)
			}
			if words := ended(t, conn); len(words) < 12 || words[9:12] != strconv.Itoa(c.status) {
				t.Errorf("the answer is %q, want %d", words, c.status)
			}
		})
	}
	if len(b.called) != 0 {
		t.Errorf("the backend was asked %v", b.called)
	}
}

// neverEnding is an endless stream of one byte.
type neverEnding byte

func (n neverEnding) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(n)
	}
	return len(b), nil
}
