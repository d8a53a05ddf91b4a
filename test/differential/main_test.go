package differential

import (
	"flag"
	"os"
	"testing"

	"github.com/scon-project/scon/test/bed/scontest"
)

var (
	cases = flag.Int("cases", 500, "how many cases to run")
	seed  = flag.Uint64("seed", 0, "seed of the first case, later ones count up; 0 derives it from the hour, so that a failure repeats")
)

func TestMain(m *testing.M) { os.Exit(scontest.Main(m, nil)) }
