package bench

import (
	"os"
	"testing"

	"github.com/scon-project/scon/internal/host/cores"
)

func TestParseCPUModel(t *testing.T) {
	for file, want := range map[string]string{
		"testdata/cpuinfo-amd64": "Intel(R) Celeron(R) N4500 @ 1.10GHz",
		"testdata/cpuinfo-arm64": "", // the name is in the device tree
	} {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := parseCPUModel(f); got != want {
			t.Errorf("%s: got %q, want %q", file, got, want)
		}
	}
}

func TestDeviceModel(t *testing.T) {
	for file, want := range map[string]string{
		"testdata/model-rpi4": "Raspberry Pi 4 Model B Rev 1.4",
		"testdata/nothing":    "",
	} {
		if got := deviceModel(file); got != want {
			t.Errorf("%s: got %q, want %q", file, got, want)
		}
	}
}

func TestTwoCPUsAreAllowedOnes(t *testing.T) {
	first, last, err := TwoCPUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, cpu := range []int{first, last} {
		unpin, err := cores.Pin(cpu)
		if err != nil {
			t.Error(err)
			continue
		}
		unpin()
	}
	if first > last {
		t.Errorf("first CPU %d is above last CPU %d", first, last)
	}
}
