package liberal

import (
	"os"
	"testing"

	"github.com/scon-project/scon/test/bed/scontest"
)

func TestMain(m *testing.M) { os.Exit(scontest.Main(m, nil)) }
