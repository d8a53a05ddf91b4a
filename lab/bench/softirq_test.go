package bench

import (
	"net"
	"os"
	"os/exec"
	"testing"
)

func TestSoftirqTimeGrowsWithTraffic(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test loads BPF programs: run it as root (sudo make test)")
	}
	m, err := openSoftirqMeter()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := m.objects.WatchedProcess.Set(uint32(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	before, err := m.Total()
	if err != nil {
		t.Fatal(err)
	}
	sendToSelf(t, 1000)
	after, err := m.Total()
	if err != nil {
		t.Fatal(err)
	}
	// Any machine takes longer than this to pass one packet through the loopback
	// device.
	if used := after - before; used < 1000*50 {
		t.Errorf("1000 packets took %v in softirqs", used)
	}
	// A packet of the loopback device is received by the process that sends it.
	if _, watched, err := m.read(); err != nil || watched < 1000*50 {
		t.Errorf("of this process: %v, %v", watched, err)
	}
}

// The share of a process is found by the PID that it has in a PID namespace, too.
func TestSoftirqTimeInPIDNamespace(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", program, "-test.run=^TestSoftirqTimeGrowsWithTraffic$").CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// sendToSelf sends datagrams over the loopback device.
func sendToSelf(t *testing.T, n int) {
	t.Helper()
	server, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := net.Dial("udp4", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	buffer := make([]byte, 64)
	for range n {
		if _, err := client.Write(buffer); err != nil {
			t.Fatal(err)
		}
		if _, _, err := server.ReadFrom(buffer); err != nil {
			t.Fatal(err)
		}
	}
}
