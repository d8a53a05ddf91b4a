//go:build pprof

package main

import (
	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/api/profiles"
)

func init() { api.AddDebug = profiles.Add }
