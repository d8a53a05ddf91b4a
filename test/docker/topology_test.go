package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTopologyOfContainers builds a line with a Docker container in the
// middle, and removes it.
func TestTopologyOfContainers(t *testing.T) {
	e := Start(t)
	e.Import(t, Image{Name: "box"})
	bin, err := buildSCON()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "line.yaml")
	err = os.WriteFile(file, []byte(`name: mixed
topology:
  nodes:
    a:
    box: {kind: linux, image: box, cmd: sleep 100000, cpu-set: 0}
    b: {kind: linux, image: box, cmd: sleep 100000}
  links:
    - endpoints: ["a:right", "box:left"]
    - endpoints: ["box:right", "b:left"]
`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	scon := func(args ...string) string { return strings.TrimSpace(output(t, e.Command(bin, args...))) }
	state := func() string {
		return fmt.Sprintf("links:\n%s\nnames:\n%s\ncontainers:\n%s\nrecords:\n%s",
			e.Sh(t, "ip -o link show | cut -d: -f2"), e.Sh(t, "ls /run/netns"), e.Docker(t, "ps", "--all"),
			e.Sh(t, "ls /run/scon-lab 2>/dev/null || true"))
	}
	before := state()

	scon("lab", "up", "--topology", file)
	if cpus := e.Docker(t, "inspect", "--format", "{{.HostConfig.CpusetCpus}}", "scon-mixed-box"); cpus != "0" {
		t.Errorf("the container has CPUs %q, want 0", cpus)
	}
	// Through the container in the middle, to the last node.
	scon("lab", "exec", "a", "--", "ping", "-c", "1", "-W", "5", "10.98.0.3")
	out := e.Docker(t, "exec", "scon-mixed-box", "busybox", "ip", "address")
	if !strings.Contains(out, "left") || !strings.Contains(out, "10.98.0.2/32") {
		t.Errorf("the container's links: %s", out)
	}
	scon("lab", "down")
	if after := state(); after != before {
		t.Errorf("after the topology\n%s\nbefore\n%s", after, before)
	}

	// A container that exits at once is refused, and everything built is removed.
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	err = os.WriteFile(bad, []byte("name: bad\ntopology: {nodes: {a: , b: {kind: linux, image: box, cmd: \"true\"}}}\n"), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	text, err := e.Command(bin, "lab", "up", "--topology", bad).CombinedOutput()
	if err == nil || !strings.Contains(string(text), "node b: ") {
		t.Errorf("a container that exits at once: %v: %s", err, text)
	}
	if after := state(); after != before {
		t.Errorf("after the bad topology\n%s\nbefore\n%s", after, before)
	}
}
