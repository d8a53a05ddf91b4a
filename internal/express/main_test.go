package express_test

import (
	"os"
	"testing"

	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/test/bed/scontest"
)

func TestMain(m *testing.M) { os.Exit(scontest.Main(m, express.ForceClsact)) }
