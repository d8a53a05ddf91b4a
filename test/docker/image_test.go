package docker

import (
	"bytes"
	"testing"

	"github.com/scon-project/scon/test/bed/machine"
)

// packages are the Debian packages with the programs that the tests need.
var packages = map[string]string{
	"busybox":       "busybox-static",
	"docker":        "docker.io",
	"dockerd":       "docker.io",
	"ip":            "iproute2",
	"iperf3":        "iperf3",
	"iptables":      "iptables",
	"ldd":           "libc-bin",
	"mosquitto":     "mosquitto",
	"mosquitto_pub": "mosquitto-clients",
	"mosquitto_sub": "mosquitto-clients",
	"nft":           "nftables",
	"nginx":         "nginx-light",
	"nsenter":       "util-linux",
	"nstat":         "iproute2",
	"sysctl":        "procps",
	"tc":            "iproute2",
}

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
