//go:build !drills

package fault

// At marks a point where a drill may kill this process. The point's label is "<moment> <what>".
// Ordinary builds do nothing here.
func At(moment, what string) {}
