// Package backup writes snapshot files and looks after a directory of them. The
// leader makes a backup by itself every interval, loads each one on trial, and
// removes its own older ones when there are enough newer ones.
package backup
