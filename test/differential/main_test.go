package differential

import (
	"flag"
	"os"
	"testing"

	"github.com/scon-project/scon/internal/lab/scontest"
)

var (
	cases = flag.Int("cases", 500, "how many cases to run")
	seed  = flag.Uint64("seed", 0, "seed of the first case, the others follow; 0 takes that of the hour: what fails fails again")
)

func TestMain(m *testing.M) { os.Exit(scontest.Main(m, nil)) }
