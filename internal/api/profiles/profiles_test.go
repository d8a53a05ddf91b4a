package profiles_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/api/profiles"
)

// visitorEnv is set in a process that acts as a client of another user; it holds the
// socket.
const visitorEnv = "SCON_TEST_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(visitorEnv); socket != "" {
		visit(socket)
		return
	}
	api.AddDebug = profiles.Add
	os.Exit(m.Run())
}

// visit requests profiles and prints the status and the beginning of each answer.
func visit(socket string) {
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	for _, path := range []string{"goroutine?debug=1", "heap?debug=1", "../pprof/goroutine?debug=1"} {
		resp, err := client.Get("http://scon/debug/pprof/" + path)
		if err != nil {
			fmt.Println(err)
			continue
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(resp.StatusCode, strings.SplitN(string(text), ":", 2)[0])
	}
}

// control is a service with only the common routes.
type control struct{}

func (control) Metrics(io.Writer) error { return nil }
func (control) Stop() error             { return errors.ErrUnsupported }

// TestRights checks that root reads profiles, and members of the socket's group do not.
func TestRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test takes other users' places: run it as root (sudo make test)")
	}
	const groupName = "mail" // of every distribution
	group, err := user.LookupGroup(groupName)
	if err != nil {
		t.Skip("needs a group called " + groupName)
	}
	gid, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	socket := serve(t, groupName)
	const nobody = 65534
	for name, c := range map[string]struct {
		as   syscall.Credential
		want string
	}{
		"root":                {syscall.Credential{}, "200 goroutine profile\n200 heap profile\n200 goroutine profile\n"},
		"member of the group": {syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{uint32(gid)}}, strings.Repeat("403 {\"error\"\n", 3)},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe") // its path may be root's alone
			cmd.Env = append(os.Environ(), visitorEnv+"="+socket)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &c.as}
			got, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, got)
			}
			if string(got) != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

// serve serves until the test ends.
func serve(t *testing.T, group string) (socket string) {
	dir, err := os.MkdirTemp("", "scon-profiles-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "scon.sock")
	l, err := api.Listen(socket, group)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- api.Serve(ctx, l, api.NewMux(control{}), slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return socket
}
