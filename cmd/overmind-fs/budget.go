package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/prometheus/common/model"

	"overmind-fs/fs/store"
)

// parseBudget reads a number of bytes ("16GiB", "8g", "1000000") or a share of the memory ("50%").
func parseBudget(s string) (uint64, error) {
	if strings.HasSuffix(strings.TrimSpace(s), "%") {
		share, err := parseShare(s)
		if err != nil {
			return 0, err
		}
		total, err := store.TotalMemory()
		if err != nil {
			return 0, err
		}
		return uint64(float64(total) * share), nil
	}
	n, err := humanize.ParseBytes(s)
	if err != nil || n == 0 || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size such as 16GiB or 50%%", s)
	}
	return n, nil
}

// parsePressure reads a share of the time; "off" is 0.
func parsePressure(s string) (float64, error) {
	if s == "off" {
		return 0, nil
	}
	return parseShare(s)
}

// parseShare reads a percentage above 0.
func parseShare(s string) (float64, error) {
	number, ok := strings.CutSuffix(strings.TrimSpace(s), "%")
	percent, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok || err != nil || math.IsNaN(percent) || percent <= 0 || percent > 100 {
		return 0, fmt.Errorf("%q is not a share between 0%% and 100%%", s)
	}
	return percent / 100, nil
}

// parseAge reads the value of a flag that is a time, also in days and weeks.
func parseAge(flag, text string) (time.Duration, error) {
	d, err := model.ParseDuration(text)
	if err != nil {
		return 0, usageError{fmt.Sprintf("--%s is a time such as 90m, 24h or 7d, not %q", flag, text)}
	}
	return time.Duration(d), nil
}
