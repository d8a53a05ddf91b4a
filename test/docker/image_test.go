package docker

import (
	"bytes"
	"slices"
	"testing"

	"github.com/scon-project/scon/test/bed/machine"
	"github.com/scon-project/scon/test/bed/needs"
)

// programs are those that the tests run.
var programs = append(slices.Clone(needs.Docker), []needs.Program{
	{Name: "busybox", Package: "busybox-static"},
	{Name: "ip", Package: "iproute2"},
	{Name: "iperf3", Package: "iperf3"},
	{Name: "iptables", Package: "iptables"},
	{Name: "ldd", Package: "libc-bin"},
	{Name: "mosquitto", Package: "mosquitto"},
	{Name: "mosquitto_pub", Package: "mosquitto-clients"},
	{Name: "mosquitto_sub", Package: "mosquitto-clients"},
	{Name: "nft", Package: "nftables"},
	{Name: "nginx", Package: "nginx-light"},
	{Name: "nsenter", Package: "util-linux"},
	{Name: "nstat", Package: "iproute2"},
	{Name: "sysctl", Package: "procps"},
	{Name: "tc", Package: "iproute2"},
}...)

// Image is an image that a test imports.
type Image = machine.Image

// Import creates an image.
func (e *Engine) Import(t *testing.T, img Image) {
	t.Helper()
	var rootfs bytes.Buffer
	if err := img.Write(&rootfs); err != nil {
		t.Fatalf("image %s: %v", img.Name, err)
	}
	cmd := e.Command("docker", "import", "-", img.Name)
	cmd.Stdin = &rootfs
	output(t, cmd)
}
