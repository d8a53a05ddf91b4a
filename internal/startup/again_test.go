package startup

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// A client that found no agent, since that had died, asks the next one as soon as it answers.
func TestRestartedMeanwhile(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
		if err := os.Rename(b.socket(), b.socket()+".aside"); err != nil { // as before the next one listens
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(bin, "scon-cni"))
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID=c", "CNI_IFNAME=eth0", "CNI_PATH="+bin, "CNI_NETNS="+netns.Path(pod))
		cmd.Stdin = strings.NewReader(b.conf())
		out := new(strings.Builder)
		cmd.Stdout = out
		nstest.Do(t, b.host, func() {
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
		})
		eventually(t, "it has found no agent", func() bool {
			name, _ := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/comm")
			return string(name) == "scon\n"
		})
		if err := os.Rename(b.socket()+".aside", b.socket()); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v: %s", verb, err, out)
		}
	}
	b.wantWhole(b.conf())
}

// The same with an agent that dies at a step of the ADD: the next one has removed what it left.
func TestKilledAndRestarted(t *testing.T) {
	for _, at := range []string{"add-leased", "add-made"} {
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			b.start(faultEnv + "=" + at)
			pod, died := nstest.New(t), b.agent
			added := make(chan answer)
			go func() { added <- b.cni("ADD", "c", netns.Path(pod), b.conf()) }()
			_ = died.Wait()
			b.start()
			b.want(<-added)
			b.ping(pod)
			b.want(b.cni("DEL", "c", netns.Path(pod), b.conf()))
			b.wantWhole(b.conf())
		})
	}
}

// Many clients without an agent leave the lock to one that starts.
func TestAgentGoesFirst(t *testing.T) {
	b := newBed(t)
	b.start()
	b.kill()
	f, err := os.Open(filepath.Join(b.dir, "startup", strconv.FormatUint(inode(t, b.host), 10), "agent"))
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // as it does first
	}
	if err != nil {
		t.Fatal(err)
	}
	pod := nstest.New(t)
	if a := b.cni("ADD", "c", netns.Path(pod), b.conf(), patienceEnv+"=10ms"); a.code != 1 || !strings.Contains(a.out, "runs but does not answer") {
		t.Errorf("ADD: %s", a.out)
	}
	f.Close()
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
}

// A request during which the agent ends is sent again.
func TestAskedAgain(t *testing.T) {
	b := newBed(t)
	l, err := net.Listen("unix", b.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for _, reply := range []string{"", "HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"} {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, reply)
			conn.Close()
		}
	}()
	if a := b.cni("ADD", "c", netns.Path(nstest.New(t)), b.conf(`"agentDown": "error"`)); a.code != 0 || a.out != "{}" {
		t.Errorf("ADD: %d %s", a.code, a.out)
	}
}
