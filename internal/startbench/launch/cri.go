package launch

import (
	"context"
	"errors"

	"github.com/scon-project/scon/internal/startbench"
)

func openCRI(ctx context.Context, o startbench.Order, n []*network) (launcher, error) {
	return nil, errors.New("not built yet")
}
