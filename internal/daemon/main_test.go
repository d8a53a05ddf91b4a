package daemon_test

import (
	"os"
	"testing"

	"github.com/scon-project/scon/internal/daemon"
	"github.com/scon-project/scon/internal/scontest"
)

func TestMain(m *testing.M) { os.Exit(scontest.Main(m, daemon.ForceClsact)) }
