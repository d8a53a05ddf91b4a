// Package services tests the three services side by side: each starts, ends and restarts
// independently.
package services
