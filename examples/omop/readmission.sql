-- One row for each adult with type 2 diabetes before 2024, as known on that day: will a hospital admit them in 2024?
-- The OMOP common data model, version 5.4, in words that SQLite and PostgreSQL both know. The days are fixed, so that the
-- same query gives the same rows for as long as a run lasts. Numbers are concepts of OMOP's vocabularies.
WITH cohort AS (
  SELECT person.person_id, person.year_of_birth, person.gender_concept_id
  FROM person
  WHERE person.year_of_birth <= 2005
    AND EXISTS (
      SELECT 1 FROM condition_occurrence AS diabetes
      WHERE diabetes.person_id = person.person_id
        AND diabetes.condition_concept_id = 201826
        AND diabetes.condition_start_date < '2024-01-01'
    )
),
conditions AS (
  SELECT
    person_id,
    MAX(CASE WHEN condition_concept_id = 320128 THEN 1 ELSE 0 END) AS hypertension,
    MAX(CASE WHEN condition_concept_id = 316139 THEN 1 ELSE 0 END) AS heart_failure,
    MAX(CASE WHEN condition_concept_id = 46271022 THEN 1 ELSE 0 END) AS kidney_disease
  FROM condition_occurrence
  WHERE condition_start_date < '2024-01-01'
  GROUP BY person_id
),
numbered AS (
  SELECT
    person_id,
    measurement_concept_id,
    value_as_number,
    ROW_NUMBER() OVER (
      PARTITION BY person_id, measurement_concept_id ORDER BY measurement_date DESC, measurement_id DESC
    ) AS place
  FROM measurement
  WHERE measurement_date < '2024-01-01' AND value_as_number IS NOT NULL
),
measurements AS (
  SELECT
    person_id,
    MAX(CASE WHEN measurement_concept_id = 3004410 THEN value_as_number END) AS hba1c,
    MAX(CASE WHEN measurement_concept_id = 3016723 THEN value_as_number END) AS creatinine,
    MAX(CASE WHEN measurement_concept_id = 3004249 THEN value_as_number END) AS systolic,
    MAX(CASE WHEN measurement_concept_id = 3038553 THEN value_as_number END) AS bmi
  FROM numbered
  WHERE place = 1
  GROUP BY person_id
),
visits AS (
  SELECT
    person_id,
    SUM(CASE WHEN visit_concept_id = 9201 AND visit_start_date < '2024-01-01' THEN 1 ELSE 0 END) AS admissions,
    SUM(CASE WHEN visit_concept_id = 9203 AND visit_start_date < '2024-01-01' THEN 1 ELSE 0 END) AS emergencies,
    MAX(CASE WHEN visit_concept_id = 9201 AND visit_start_date >= '2024-01-01' THEN 1 ELSE 0 END) AS admitted
  FROM visit_occurrence
  WHERE visit_start_date >= '2023-01-01' AND visit_start_date < '2025-01-01'
  GROUP BY person_id
)
SELECT
  cohort.person_id,
  2024 - cohort.year_of_birth AS age,
  CASE WHEN cohort.gender_concept_id = 8532 THEN 1 ELSE 0 END AS female,
  conditions.hypertension,
  conditions.heart_failure,
  conditions.kidney_disease,
  measurements.hba1c,
  measurements.creatinine,
  measurements.systolic,
  measurements.bmi,
  COALESCE(visits.admissions, 0) AS admissions,
  COALESCE(visits.emergencies, 0) AS emergencies,
  COALESCE(visits.admitted, 0) AS admitted
FROM cohort
JOIN conditions ON conditions.person_id = cohort.person_id
LEFT JOIN measurements ON measurements.person_id = cohort.person_id
LEFT JOIN visits ON visits.person_id = cohort.person_id
ORDER BY cohort.person_id;
